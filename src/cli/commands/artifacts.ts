import { createWriteStream } from "node:fs";
import { rm } from "node:fs/promises";
import { pipeline } from "node:stream/promises";
import type { Command } from "commander";
import { type Duration, toMillis } from "../../core/duration.ts";
import { HoldfastError } from "../../core/errors.ts";
import { number, plural } from "../../core/words.ts";
import { Operator } from "../../runtime/operator.ts";
import { openExisting } from "../database.ts";
import { answer, isJson } from "../render/output.ts";
import { examples } from "../verb.ts";

export function artifactsCommand(parent: Command): void {
  const artifacts = parent
    .command("artifacts")
    .summary("read stored bytes, or remove what nobody needs")
    .description("Read bytes that stages have stored, or remove those that nobody references any more.")
    .addHelpText("after", examples("holdfast artifacts sweep"));
  for (const add of [addGet, addSweep]) add(artifacts);
}

function addGet(parent: Command): void {
  parent
    .command("get")
    .summary("write an artifact's bytes to standard output, or a file")
    .description(
      "Write an artifact's bytes to standard output, or to a file that is not there yet. They are verified as they pass.",
    )
    .argument("<hash>", "its sha-256, as in a manifest")
    .option("--out <file>", "write it there; with --json this is needed")
    .addHelpText("after", examples("holdfast artifacts get 2c26b46b68ff… --out index.bin"))
    .action(async (hash: string, { out }: { out?: string }, command: Command) => {
      if (out === undefined && isJson(command)) {
        throw new HoldfastError("USAGE", "With --json the bytes cannot go to standard output.", "Give --out FILE.");
      }
      await using hf = await openExisting(command);
      const bytes = await new Operator(hf).readArtifact(hash);
      if (out === undefined) return await pipeline(bytes, process.stdout, { end: false });
      const size = await writeNew(bytes, out);
      answer(command, { hash, file: out, size }, () => `${number(size)} bytes in ${out}`);
    });
}

/** Whole, or not at all. */
async function writeNew(bytes: NodeJS.ReadableStream, out: string): Promise<number> {
  const file = createWriteStream(out, { flags: "wx" });
  try {
    await pipeline(bytes, file);
    return file.bytesWritten;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") {
      throw new HoldfastError("USAGE", `There is something at ${out} already.`, "Give another name, or remove it first.");
    }
    await rm(out, { force: true });
    throw error;
  }
}

function addSweep(parent: Command): void {
  parent
    .command("sweep")
    .summary("remove artifacts that nobody references")
    .description(
      "Remove artifacts that no build references any more. Builds may run meanwhile: nothing that is in use is removed.",
    )
    .option("--older-than <duration>", "and that nobody has stored for this long", "1d")
    .addHelpText("after", examples("holdfast artifacts sweep", "holdfast artifacts sweep --older-than 7d --json"))
    .action(async (options: { olderThan: string }, command: Command) => {
      const olderThan = toMillis(options.olderThan as Duration, "--older-than");
      await using hf = await openExisting(command);
      const swept = await new Operator(hf).sweepArtifacts(olderThan);
      answer(command, swept, () => {
        return `Removed ${plural(swept.removed, "artifact")} of ${number(swept.seen)}, ${number(swept.bytes)} bytes.`;
      });
    });
}
