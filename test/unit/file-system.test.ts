import assert from "node:assert/strict";
import { tmpdir } from "node:os";
import { test } from "node:test";
import { HoldfastError } from "../../src/core/text/errors.ts";
import { networkFileSystem, refuseNetwork } from "../../src/store/sqlite/open.ts";

const FUSE = 0x65735546;

const NETWORK: [number, string][] = [
  [0x6969, "NFS"],
  [0x517b, "SMB"],
  [0xff534d42, "CIFS"],
  [0xfe534d42, "SMB2"],
  [0x01021997, "9P"],
  [0x5346414f, "AFS"],
  [0x00c36400, "Ceph"],
  [0x0bd00bd0, "Lustre"],
  [0x47504653, "GPFS"],
  [0x01161970, "GFS2"],
  [0x7461636f, "OCFS2"],
];
for (const [type, name] of NETWORK) {
  test(`${name} is a network file system`, () => {
    assert.equal(
      networkFileSystem("/data", () => type),
      name,
    );
    // Some systems give the number with its sign.
    assert.equal(
      networkFileSystem("/data", () => type | 0),
      name,
    );
  });
}

const LOCAL = {
  ext4: 0xef53,
  btrfs: 0x9123683e,
  xfs: 0x58465342,
  tmpfs: 0x01021994,
  overlay: 0x794c7630,
  zfs: 0x2fc12fc1,
  none: 0,
};
for (const [name, type] of Object.entries(LOCAL)) {
  test(`${name} is a local file system`, () =>
    assert.equal(
      networkFileSystem("/data", () => type),
      null,
    ));
}

const MOUNTS = [
  "/dev/sda1 / ext4 rw 0 0",
  "host:/home /mnt/remote fuse.sshfs rw 0 0",
  "bucket /mnt/remote/bucket fuse.s3fs rw 0 0",
  "/dev/fuse /mnt/ntfs fuseblk rw 0 0",
  "overlay /mnt/remote/local fuse.fuse-overlayfs rw 0 0",
  "drive: /mnt/drive fuse.rclone rw 0 0",
  "",
].join("\n");
for (const [folder, name] of [
  ["/mnt/remote", "fuse.sshfs"],
  ["/mnt/remote/a/b", "fuse.sshfs"],
  ["/mnt/remote/bucket/a", "fuse.s3fs"],
  ["/mnt/remote/local/a", null],
  ["/mnt/remotely", null],
  ["/mnt/ntfs/a", null],
  ["/mnt/drive", "fuse.rclone"],
  ["/elsewhere", null],
] as const) {
  test(`through FUSE, ${folder} is on ${name ?? "a local file system"}`, () => {
    assert.equal(
      networkFileSystem(
        folder,
        () => FUSE,
        () => MOUNTS,
      ),
      name,
    );
  });
}

test("through FUSE without a list of mounts, no path is rejected", () => {
  assert.equal(
    networkFileSystem(
      "/mnt",
      () => FUSE,
      () => "",
    ),
    null,
  );
});

test("a network file system is rejected by name, with a way out", () => {
  assert.throws(
    () => refuseNetwork("/data", () => 0x6969),
    (error) => {
      assert.ok(error instanceof HoldfastError);
      assert.equal(error.code, "NETWORK_FILE_SYSTEM");
      assert.match(error.message, /\/data .*NFS/);
      assert.match(error.hint, /local disk/);
      return true;
    },
  );
});

test("this machine's folder for temporary files is local", () => {
  assert.equal(networkFileSystem(tmpdir()), null);
  refuseNetwork(tmpdir());
});
