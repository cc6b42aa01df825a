/** Takes the image, in a process of its own, because the test's process may have the database open. */
import { hostname } from "node:os";
import { HoldfastError } from "../core/text/errors.ts";
import { bootId } from "../engine/host.ts";
import { cutPower, type PowerCutImage, type PowerCutOptions } from "../store/sqlite/maintenance/power-cut.ts";

export type PowerCutAnswer = { image: PowerCutImage } | { failure: { code: string; message: string; hint: string } };

process.once("message", (options: Omit<PowerCutOptions, "booted">) => {
  process.send?.(answerTo(options), () => process.disconnect());
});

function answerTo(options: Omit<PowerCutOptions, "booted">): PowerCutAnswer {
  try {
    return { image: cutPower({ ...options, booted: { host: hostname(), boot: bootId() } }) };
  } catch (error) {
    const { message } = error as Error;
    const [code, hint] =
      error instanceof HoldfastError ? [error.code, error.hint] : ["IMAGE_FAILED", "Check the disk and the paths."];
    return { failure: { code, message, hint } };
  }
}
