import { open } from "../../../src/index.ts";
import { delivered, happens } from "../event-parts.ts";

const hf = await open(process.argv[2] as string, { sinks: { out: { type: "console" } } });
await happens(hf, "a", "b");
await delivered(hf, "out");
await hf.close();
