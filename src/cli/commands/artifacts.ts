import { createWriteStream } from "node:fs";
import { rm } from "node:fs/promises";
import { pipeline } from "node:stream/promises";
import type { Command } from "commander";
import { type Duration, toMillis } from "../../core/text/duration.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { numberText, plural } from "../../core/text/text.ts";
import { isJson } from "../render/output.ts";
import { addCommand, onDatabase } from "../verb.ts";

export function artifactsCommand(parent: Command): void {
  const artifacts = addCommand(parent, "artifacts", {
    description: "Read bytes that stages have stored, or remove those without a reference.",
    examples: ["holdfast artifacts sweep"],
  });
  addCommand(artifacts, "get", {
    summary: "write an artifact's bytes to standard output, or a file",
    description: "Write an artifact's bytes to standard output, or to a new file, and verify them.",
    examples: ["holdfast artifacts get 2c26b46b68ff… --out index.bin"],
  })
    .argument("<hash>", "its sha-256, as in a manifest")
    .option("--out <file>", "file to write; required with --json")
    .hook("preAction", (command) => {
      if (command.opts<{ out?: string }>().out !== undefined || !isJson(command)) return;
      throw new HoldfastError("USAGE", "With --json the bytes cannot go to standard output.", "Give --out FILE.");
    })
    .action(
      onDatabase(async ({ operator }, hash: string, { out }: { out?: string }) => {
        const bytes = await operator.readArtifact(hash);
        if (out === undefined) return await pipeline(bytes, process.stdout, { end: false });
        const size = await writeNew(bytes, out);
        return [{ hash, file: out, size }, () => `${numberText(size)} bytes in ${out}`];
      }),
    );
  addCommand(artifacts, "sweep", {
    summary: "remove artifacts without a reference",
    description: "Remove artifacts that no build references. Builds may run meanwhile: nothing that is in use is removed.",
    examples: ["holdfast artifacts sweep", "holdfast artifacts sweep --older-than 7d --json"],
  })
    .option("--older-than <duration>", "and that were not stored for this long", "1d")
    .hook("preAction", (command) => void ageOf(command.opts()))
    .action(
      onDatabase(async ({ operator }, options: { olderThan: string }) => {
        const swept = await operator.sweepArtifacts(ageOf(options));
        const { removed, seen, bytes } = swept;
        return [swept, () => `Removed ${plural(removed, "artifact")} of ${numberText(seen)}, ${numberText(bytes)} bytes.`];
      }),
    );
}

function ageOf({ olderThan }: { olderThan: string }): number {
  return toMillis(olderThan as Duration, "--older-than");
}

/** Writes the bytes into a new file, and removes the file if the bytes cannot be read to their end. */
async function writeNew(bytes: NodeJS.ReadableStream, out: string): Promise<number> {
  const file = createWriteStream(out, { flags: "wx" });
  try {
    await pipeline(bytes, file);
    return file.bytesWritten;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") {
      throw new HoldfastError("USAGE", `A file or folder exists at ${out} already.`, "Give another name, or remove it first.");
    }
    await rm(out, { force: true });
    throw error;
  }
}
