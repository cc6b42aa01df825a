import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { Readable } from "node:stream";
import { type ArtifactPoint, armArtifactPoint } from "../../../src/artifacts/folder.ts";
import { say, told } from "../../crash/children/port.ts";
import { allReferenced, HOUR, noneReferenced, noise, openIn } from "../shelf.ts";

/** Does the operation that dies at the point; by the end of it this process should be no more. */
const { folder, base, operation, point } = told<{
  folder: string;
  base: string;
  operation: "put" | "sweep" | "export" | "hang" | "folder";
  point?: ArtifactPoint;
}>();
const artifacts = await openIn(folder, { now: () => Date.now() + (operation === "sweep" ? 2 * HOUR : 0) });
const bytes = noise(600_000);

if (point !== undefined) armArtifactPoint(point);
switch (operation) {
  case "put":
    await artifacts.put(Readable.from([bytes.subarray(0, 9), bytes.subarray(9)], { objectMode: false }));
    break;
  case "sweep": {
    let looks = 0;
    // What gets its reference between the two looks goes back; everything else goes.
    await artifacts.sweep(
      (hashes) => (point === "sweep:restored" && ++looks % 2 === 0 ? allReferenced(hashes) : noneReferenced()),
      { olderThan: "1h" },
    );
    break;
  }
  case "export": {
    const [a, b] = [await artifacts.put("a"), await artifacts.put(bytes)];
    const entries = [
      { path: "a", hash: a.hash },
      { path: "folder/b", hash: b.hash },
    ];
    await artifacts.exportTo(join(base, "out", "two"), entries, { two: true });
    break;
  }
  case "folder":
    writeFileSync(join(artifacts.privateFolderNow(), "copy"), bytes);
    await say("copied");
    await new Promise(() => setInterval(() => {}, 60_000));
    break;
  case "hang": {
    let pieces = 0;
    await artifacts.put(
      new Readable({
        read() {
          if (pieces++ === 0) this.push(bytes);
          else void say("writing");
        },
      }),
    );
  }
}
await say("survived");
