import { createHash } from "node:crypto";
import { DatabaseSync } from "node:sqlite";
import { type ArtifactPoint, armArtifactPoint } from "../../../src/artifacts/folder.ts";
import { hear, say, told } from "../../crash/children/port.ts";
import { randomFrom } from "../../seeds.ts";
import { noise, openIn } from "../shelf.ts";

/** Stores, references and forgets a few artifacts over and over; or sweeps, with no time of grace at all. */
const { folder, base, role, seed, rounds, kinds, point } = told<{
  folder: string;
  base: string;
  role: "putter" | "sweeper";
  seed: number;
  rounds: number;
  kinds: number;
  point?: ArtifactPoint;
}>();
const random = randomFrom(seed);
const db = new DatabaseSync(`${base}/refs.db`, { timeout: 20_000 });
db.exec("pragma synchronous = off");
const artifacts = await openIn(folder);

if (role === "putter") {
  const insert = db.prepare("insert into refs (owner, hash) values (?, ?)");
  const forget = db.prepare("delete from refs where owner = ? and hash = ?");
  const own = new Set<string>();
  let refused = 0;
  for (let round = 0; round < rounds; round++) {
    const bytes = noise(2_000, 1 + Math.floor(random() * kinds));
    for (;;) {
      const { hash } = await artifacts.put(bytes);
      db.exec("begin immediate");
      const [gone] = artifacts.missing([hash]);
      if (gone === undefined) insert.run(seed, hash);
      db.exec("commit");
      if (gone === undefined) own.add(hash);
      if (gone === undefined) break;
      refused++;
    }
    for (const hash of own) {
      const read = createHash("sha256")
        .update(await artifacts.read(hash))
        .digest("hex");
      if (read !== hash) throw new Error(`${hash} is not what was stored`);
    }
    for (const hash of own) {
      if (own.size <= 2 && random() < 0.6) continue;
      own.delete(hash);
      forget.run(seed, hash);
    }
  }
  await say("done", { refused, own: [...own] });
} else {
  const over = new AbortController();
  hear("stop", () => over.abort());
  const select = db.prepare("select distinct hash from refs");
  let removed = 0;
  let restored = 0;
  let looks = 0;
  const isReferenced = async (hashes: string[]) => {
    // The write lock: a transaction that has asked whether the artifacts are there has committed.
    db.exec("begin immediate");
    const referenced = new Set(select.all().map((row) => row["hash"] as string));
    db.exec("commit");
    if (++looks % 2 === 0) restored += hashes.filter((hash) => referenced.has(hash)).length;
    return referenced;
  };
  await say("sweeping");
  if (point !== undefined) armArtifactPoint(point);
  while (!over.signal.aborted) {
    looks = 0;
    const swept = await artifacts.sweep(isReferenced, { olderThan: 0 });
    removed += swept.removed;
    await new Promise((resolve) => setImmediate(resolve));
  }
  await say("done", { removed, restored });
}
artifacts.close();
db.close();
process.disconnect?.();
