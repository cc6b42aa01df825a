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

/** The same refusal of the same build is recorded once in this time: a script that guesses tokens must not fill the audit. */
const FOLD_MS = 3_600_000;

async function writeDown({ store, log, clock }: Engine, build: string, code: string): Promise<void> {
  const isRepeat = async (): Promise<boolean> => {
    const newest = await store.audit.page({ subject: build, after: 0, limit: 20, last: true });
    return newest.some(({ action, at, after }) => {
      if (action !== "build.token_refused" || Math.abs(clock.now() - at) >= FOLD_MS) return false;
      return (after as { refused?: unknown } | null)?.refused === code;
    });
  };
  await isRepeat()
    .then((repeat) => (repeat ? undefined : record(store, build, code)))
    .catch((error: unknown) => log.warn("that a token was refused could not be written down", { build, code, ...said(error) }));
}

function record(store: Engine["store"], build: string, code: string): Promise<void> {
  return store.audit.record({ action: "build.token_refused", name: build, build, after: { refused: code } });
}
