import { greet } from "./definitions.ts";

/** Heavy things would be imported here: only workers load this file. */
export const greeter = greet.handle(({ input }) => `hello ${input.to}`);
(globalThis as { handlersLoaded?: boolean }).handlersLoaded = true;
