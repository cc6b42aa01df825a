import type { Command } from "commander";
import { ageText, untilText } from "../../core/text/duration.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import type { Operator, OrchestratorLock } from "../../operator/operator.ts";
import type { LockView } from "../../store/queues.ts";
import { type Column, oneLine, tableOr } from "../render/table.ts";
import { addCommand, type Answer, onDatabase } from "../verb.ts";

export function unlockCommand(parent: Command): void {
  addCommand(parent, "unlock", {
    description:
      "Remove a lock that a dead process left, or the orchestrator lock of a pipeline: its build is then CRASHED, and " +
      "the next run resumes it. A lock whose holder lives is refused with exit code 4. Without a name: list the locks.",
    examples: ["holdfast unlock", "holdfast unlock nightly-index", "holdfast unlock docs --force"],
  })
    .argument("[name]", "the lock's or the pipeline's name, as in `holdfast status`")
    .option("--force", "remove it even while it is held; an orchestrator then stops, the holder of a lock is not notified")
    .action(
      onDatabase(async ({ operator }, name: string | undefined, { force = false }: { force?: boolean }) => {
        if (name === undefined) return await listLocks(operator);
        const [lock] = await operator.locks(name);
        if (lock !== undefined) return await unlock(operator, lock, force);
        const orchestrators = await operator.orchestratorLocks();
        const orchestrator = orchestrators.find(({ pipeline }) => pipeline === name);
        if (orchestrator === undefined) throw noSuchLock(name, await operator.locks(), orchestrators);
        return await unlockPipeline(operator, orchestrator, force);
      }),
    );
}

async function unlock(operator: Operator, lock: LockView, force: boolean): Promise<Answer> {
  const { name, holder, stale } = lock;
  // If the lock was not broken, another process has acquired it since it was read.
  if (!(await operator.breakLock(name, { stale: !force }))) throw held((await operator.locks(name))[0] ?? lock, operator.now());
  return [{ name, holder, forced: !stale }, () => `Unlocked ${oneLine(name)}: it was held by ${oneLine(holder)}.`];
}

async function unlockPipeline(operator: Operator, lock: OrchestratorLock, force: boolean): Promise<Answer> {
  const isAlive = operator.canBeAlive(lock);
  if (isAlive && !force) throw orchestrated(lock, operator.now());
  const { pipeline, build, holder, pid, host, program } = lock;
  // If the lock was not broken, a live process has acquired it since it was read.
  if (!(await operator.breakOrchestratorLock(pipeline, force ? undefined : holder))) throw taken(pipeline);
  return [
    { name: pipeline, build, pid, host, program, forced: isAlive },
    () => `Unlocked ${oneLine(pipeline)}: the orchestrator of build ${build} was ${holderText(lock)}. The next run continues it.`,
  ];
}

async function listLocks(operator: Operator): Promise<Answer> {
  const [locks, orchestratorLocks] = await Promise.all([operator.locks(), operator.orchestratorLocks()]);
  const rows: Held[] = [
    ...locks.map(({ name, holder, acquiredAt, stale, holderDead }) => {
      return { name, holder, acquiredAt, life: holderDead ? "holder is dead" : stale ? "expired" : "held" };
    }),
    ...orchestratorLocks.map((lock) => ({
      name: lock.pipeline,
      holder: holderText(lock),
      acquiredAt: lock.acquiredAt,
      life: lock.life,
    })),
  ];
  return [{ locks, leads: orchestratorLocks }, () => tableOr("There are no locks.", columns(operator.now()), rows)];
}

interface Held {
  name: string;
  holder: string;
  acquiredAt: number;
  life: string;
}

function columns(now: number): Column<Held>[] {
  return [
    { title: "NAME", value: ({ name }) => name, least: 8 },
    { title: "HOLDER", value: ({ holder }) => holder, least: 12 },
    { title: "SINCE", right: true, value: ({ acquiredAt }) => ageText(now - acquiredAt) },
    { title: "LIFE", value: ({ life }) => life },
  ];
}

function holderText({ pid, host, program }: OrchestratorLock): string {
  return `pid ${pid} on ${oneLine(host)} (${oneLine(program)})`;
}

function taken(pipeline: string): HoldfastError {
  return new HoldfastError(
    "LOCK_HELD",
    `The orchestrator lock of pipeline "${pipeline}" was just released, or acquired by another process.`,
    "Run `holdfast unlock` again to see who holds it.",
  );
}

function orchestrated(lock: OrchestratorLock, now: number): HoldfastError {
  const lives = lock.life === "alive" ? "which lives" : `which has last been heard of ${ageText(now - lock.beatAt)} ago`;
  return new HoldfastError(
    "LOCK_HELD",
    `Build ${lock.build} of pipeline "${lock.pipeline}" is run by ${holderText(lock)}, ${lives}.`,
    "Wait for it, stop that process, or add --force: the process then stops, and the next run resumes its build.",
  );
}

function held({ name, holder, acquiredAt, expiresAt }: LockView, now: number): HoldfastError {
  return new HoldfastError(
    "LOCK_HELD",
    `The lock ${name} is held by ${holder}, since ${ageText(now - acquiredAt)}, until it expires in ${untilText(expiresAt - now)} or is renewed.`,
    "Wait for it, stop its holder, or add --force if you are sure that the holder is dead.",
  );
}

function noSuchLock(name: string, locks: readonly LockView[], orchestratorLocks: readonly OrchestratorLock[]): HoldfastError {
  const others = [...locks.map((lock) => lock.name), ...orchestratorLocks.map(({ pipeline }) => pipeline)].join(", ");
  return new HoldfastError(
    "NO_SUCH_LOCK",
    `There is no lock ${name}.`,
    others === "" ? "There are no locks." : `Locks: ${others}.`,
  );
}
