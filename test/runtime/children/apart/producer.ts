import { open } from "../../../../src/index.ts";
import { greet } from "./definitions.ts";

/** Knows what jobs there are, and nothing of how they are done. */
await using hf = await open(process.argv[2]);
await hf.enqueue(greet, { to: "Anna" }, { id: "it" });
const refused = await codeOf(() => hf.enqueue(greet, { to: 7 as unknown as string }));
const worked = await codeOf(() => hf.work([greet]));
process.send?.({ refused, worked, handlersLoaded: "handlersLoaded" in globalThis });
process.disconnect?.();

async function codeOf(act: () => unknown): Promise<unknown> {
  try {
    return await act();
  } catch (error) {
    return (error as { code: string }).code;
  }
}
