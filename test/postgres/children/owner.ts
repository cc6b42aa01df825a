import { startServer } from "../server.ts";

/** Starts a server, says where it is, and does nothing more: the test kills it, or lets it leave without closing. */
const [manner] = process.argv.slice(2);
const server = await startServer();
process.send?.({ url: server.url(), dataFolder: server.dataFolder });
if (manner === "stays") setInterval(() => {}, 1_000);
else process.once("message", () => process.disconnect());
