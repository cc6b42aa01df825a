import { isRefusedUse } from "../../core/confirmation-token.ts";
import { HoldfastError } from "../../core/errors.ts";
import type { Engine } from "../engine.ts";
import { said } from "../trouble.ts";

/**
 * That somebody has tried a confirmation token is written down also where it is refused: who, on which build, and why. The
 * token is not, whatever it was. It is a transaction of its own, since the one that was refused has left nothing.
 */
export async function watched<T>(engine: Engine, build: string, use: () => Promise<T>): Promise<T> {
  try {
    return await use();
  } catch (error) {
    if (error instanceof HoldfastError && isRefusedUse(error.code)) await writeDown(engine, build, error.code);
    throw error;
  }
}

async function writeDown({ store, log }: Engine, build: string, code: string): Promise<void> {
  await store.audit
    .record({ action: "build.token_refused", name: build, build, after: { refused: code } })
    .catch((error: unknown) => log.warn("that a token was refused could not be written down", { build, code, ...said(error) }));
}
