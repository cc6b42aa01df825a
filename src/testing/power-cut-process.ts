/** Takes the image: in a process of its own, because whoever tests may have the database open. */
import { HoldfastError } from "../core/errors.ts";
import { cutPower, type PowerCutImage, type PowerCutOptions } from "../store/sqlite/power-cut.ts";

export type PowerCutAnswer = { image: PowerCutImage } | { failure: { code: string; message: string; hint: string } };

process.once("message", (options: PowerCutOptions) => {
  process.send?.(answerTo(options), () => process.disconnect());
});

function answerTo(options: PowerCutOptions): PowerCutAnswer {
  try {
    return { image: cutPower(options) };
  } catch (error) {
    const { message } = error as Error;
    const [code, hint] =
      error instanceof HoldfastError ? [error.code, error.hint] : ["IMAGE_FAILED", "Check the disk and the paths."];
    return { failure: { code, message, hint } };
  }
}
