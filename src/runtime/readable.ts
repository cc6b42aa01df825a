import { HoldfastError } from "../core/errors.ts";

/** Of a damaged database some of it cannot be read: null. The damage itself is known, or found by a check. */
export async function readable<T>(look: () => Promise<T>): Promise<T | null> {
  try {
    return await look();
  } catch (error) {
    if (isDamage(error)) return null;
    throw error;
  }
}

export function isDamage(error: unknown): boolean {
  return error instanceof HoldfastError && error.code === "DAMAGED";
}
