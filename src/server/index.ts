export type { Access } from "./access.ts";
export { handler, type ServerOptions } from "./handler.ts";
export { nodeHandler } from "./node-handler.ts";
