import { EXIT } from "./exit.ts";
import { program } from "./program.ts";
import { reportFailure } from "./render/output.ts";
import { closeOnSignals } from "./signals.ts";

export async function main(args: readonly string[]): Promise<void> {
  // `holdfast jobs list | head` closes the pipe early, and a terminal may close: neither is a failure.
  for (const stream of [process.stdout, process.stderr]) {
    stream.on("error", (error: NodeJS.ErrnoException) => {
      if (error.code !== "EPIPE" && error.code !== "EIO") throw error;
    });
  }
  const isLeaving = closeOnSignals();
  try {
    await (await program(args)).parseAsync(args, { from: "user" });
  } catch (error) {
    if (isLeaving()) return;
    const end = args.indexOf("--");
    process.exitCode = reportFailure(error, (end === -1 ? args : args.slice(0, end)).includes("--json"));
  }
  if (isLeaving()) return;
  // A user's module may keep the event loop alive, so exit explicitly, after the output is written.
  process.stdout.write("", () => process.exit(process.exitCode ?? EXIT.done));
}
