import { fork } from "node:child_process";
import { once } from "node:events";
import { ownFile } from "../../../own-file.ts";
import type { CopyCheckAnswer, CopyCheckRequest } from "./check-process.ts";
import type { CheckRequest, CheckedPages } from "./check.ts";
import { explain } from "../../faults.ts";
import { Staging } from "../backup/backups.ts";
import { toThrown } from "../backup/tasks.ts";

/**
 * Everything about a copy of it, in a child: nobody is held up, and the log can start anew while the copy is looked through.
 * What a killed one leaves is cleared away by the next, or by the next backup in that folder.
 */
export async function checkCopy(request: CheckRequest): Promise<CheckedPages> {
  const staging = stage(request);
  try {
    return await inChild({ ...request, copy: staging.database });
  } finally {
    staging.discard();
  }
}

function stage({ path, driver }: CheckRequest): Staging {
  try {
    return new Staging(`${path}-checked`, driver);
  } catch (error) {
    throw explain(error, path);
  }
}

async function inChild(request: CopyCheckRequest): Promise<CheckedPages> {
  const file = ownFile({
    here: import.meta.url,
    name: "./check-process",
    runs: "the process that checks a copy of the database",
  });
  const child = fork(file, [], { execArgv: [], stdio: ["ignore", "ignore", "inherit", "ipc"] });
  // What it has said is read before its channel ends, and it may be over before that.
  const ended = Promise.all([once(child, "exit"), once(child, "disconnect")]).then(([[code, signal]]) => {
    throw new Error(`the process that checks a copy of the database ended (${signal ?? `code ${code}`}) without an answer`);
  });
  ended.catch(() => {});
  child.send(request);
  const [answer] = (await Promise.race([once(child, "message"), ended])) as [CopyCheckAnswer];
  // Before its place is removed: it has closed the copy by then.
  await ended.catch(() => {});
  if ("failure" in answer) throw toThrown(answer.failure);
  return answer.checked;
}
