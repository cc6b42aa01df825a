import assert from "node:assert/strict";
import { appendFileSync, chmodSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, test } from "node:test";
import { noise, Shelf } from "./shelf.ts";

const SIZES = [1, 5_000, 600_000];
const HARM: Record<string, { code: string; harm: (path: string) => void }> = {
  "a flipped bit at its start": { code: "ARTIFACT_DAMAGED", harm: (path) => flip(path, 0) },
  "a flipped bit at its end": { code: "ARTIFACT_DAMAGED", harm: (path) => flip(path, -1) },
  "its last byte cut off": { code: "ARTIFACT_DAMAGED", harm: (path) => truncateSync(path, readFileSync(path).length - 1) },
  "nothing in it": { code: "ARTIFACT_DAMAGED", harm: (path) => truncateSync(path, 0) },
  "a byte too many": { code: "ARTIFACT_DAMAGED", harm: (path) => appendFileSync(path, "x") },
  "no file": { code: "ARTIFACT_MISSING", harm: (path) => rmSync(path) },
};

for (const [what, { code, harm }] of Object.entries(HARM)) {
  describe(`an artifact with ${what}`, () => {
    for (const size of SIZES) {
      test(`a damaged artifact of ${size} bytes is not returned, and is whole again when it is stored again`, async (t) => {
        const shelf = new Shelf(t);
        const artifacts = await shelf.open();
        const bytes = noise(size);
        const { hash } = await artifacts.put(bytes);
        const path = await artifacts.path(hash);
        chmodSync(path, 0o644);
        harm(path);

        const expected = { code, hint: /\w/ };
        await assert.rejects(artifacts.read(hash), expected);
        await assert.rejects(artifacts.path(hash), expected);
        const got: Buffer[] = [];
        await assert.rejects(async () => {
          for await (const piece of artifacts.stream(hash)) got.push(piece as Buffer);
        }, expected);
        assert.ok(Buffer.concat(got).length < Math.max(size, 1), "the end is kept back");
        const target = join(shelf.base, "out", "1");
        await assert.rejects(artifacts.exportTo(target, [{ path: "a", hash }], {}), expected);

        assert.deepEqual(await artifacts.put(bytes), { hash, size });
        assert.ok(bytes.equals(await artifacts.read(hash)));
      });
    }
  });
}

function flip(path: string, at: number): void {
  const bytes = readFileSync(path);
  const index = at < 0 ? bytes.length + at : at;
  bytes[index] = (bytes[index] as number) ^ 1;
  writeFileSync(path, bytes);
}
