import { open } from "../../../src/index.ts";
import { makeBackup } from "../../../src/engine/maintenance/backups.ts";
import { crashAt } from "../../../src/testing/index.ts";
import { say, told } from "./port.ts";

/** Makes a backup, and dies on the way. */
const { path, to, point, artifacts } = told<{ to: string; point: string; artifacts?: boolean }>();
const hf = await open(path, { recovery: "manual" });
crashAt(point);
const { size } = await makeBackup(hf.engine, to, { artifacts: artifacts ?? false });
await say("made", { size });
await hf.close();
process.disconnect();
