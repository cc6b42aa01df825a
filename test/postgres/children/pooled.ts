import { open } from "../../../src/index.ts";
import { pooled } from "../pooled.ts";

/** Works on builds that others lead, until the parent has disconnected. */
const [address] = process.argv.slice(2) as [string];
const hf = await open(address, { schema: "built" });
hf.work([pooled], { concurrency: 4 });
process.on("disconnect", () => process.exit());
process.send?.("ready");
