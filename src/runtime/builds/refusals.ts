import { hasEnded } from "../../core/build.ts";
import { HoldfastError } from "../../core/errors.ts";
import type { BuildRow, LeadView } from "../../store/builds.ts";
import type { Model } from "./model.ts";
import type { BuildOptions, BuildSettings, CheckedOptions } from "./settings.ts";

export function paused(pipeline: string, id: string): HoldfastError {
  return new HoldfastError(
    "BUDGET_PAUSED",
    `Pipeline "${pipeline}" has a build that is paused for its budget: ${id}.`,
    `Resume it with a token and a new budget, or abandon it: builds.mintToken("${id}") makes a token.`,
  );
}

export function conflict({ pipeline, build, pid, host, program, programHash, acquiredAt }: LeadView): HoldfastError {
  const since = new Date(acquiredAt).toISOString();
  return new HoldfastError(
    "LOCK_CONFLICT",
    `Build ${build} of pipeline "${pipeline}" is led by process ${pid} on ${host} (${program}, program hash ${programHash.slice(0, 12) || "unknown"}), since ${since}.`,
    "Wait until it is done, or stop that process. If it hangs: holdfast unlock.",
  );
}

/** Its targets are files of another host, and so is its queue. */
export function refuseElsewhere({ id, pipeline, queue, state }: BuildRow, model: Model): void {
  if (queue === model.queue || pipeline !== model.name || hasEnded(state)) return;
  throw new HoldfastError(
    "TARGET_ELSEWHERE",
    `The targets of build ${id} are files of another host (${queue.slice(queue.lastIndexOf("@") + 1)}).`,
    "Resume it there; or abandon it and start one here. With `snapshot: true` and shared artifacts any host can work on them.",
  );
}

/** A build goes on as it was started. Its budget is changed with a token, and nothing else of it is. */
export function refuseOtherOptions(
  row: BuildRow,
  options: BuildOptions & { token?: string },
  { settings, maxFailures, budget }: CheckedOptions,
): void {
  const before = JSON.parse(row.options) as BuildSettings;
  const other =
    (options.rerun !== undefined && differs(settings.rerun, before.rerun) && "rerun") ||
    (options.only !== undefined && differs(settings.only, before.only) && "only") ||
    (options.maxFailures !== undefined && maxFailures !== row.maxFailures && "maxFailures");
  if (other) {
    throw new HoldfastError(
      "OPTION_INVALID",
      `Build ${row.id} was started with another \`${other}\`, and goes on as it was started.`,
      `Leave \`${other}\` out, or abandon the build and start a new one: all that succeeded is reused.`,
    );
  }
  if (options.token !== undefined || options.budget === undefined || !differs(budget, row.budget)) return;
  throw new HoldfastError(
    "TOKEN_NEEDED",
    `The budget of build ${row.id} is another, and it is changed only with a confirmation token.`,
    `Leave \`budget\` out; or give a token, which a build has when it is paused for its budget.`,
  );
}

export function noBuild(id: string): HoldfastError {
  return new HoldfastError("NO_SUCH_BUILD", `There is no build ${id}.`, "Look at builds.list().");
}

function differs(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) !== JSON.stringify(b);
}
