import { dirname } from "node:path";
import type { BackupPlan } from "./core/recovery/backup-plan.ts";
import { toMillis } from "./core/text/duration.ts";
import { definedOnly, describeValue, invalidOption } from "./core/text/options.ts";
import { HoldfastError } from "./core/text/errors.ts";
import { checkStorable, DEFAULT_FILE_MODE, toStorable } from "./core/text/text.ts";
import { Engine } from "./engine/engine.ts";
import { checkSinks } from "./engine/events/relays.ts";
import { clockFrom } from "./engine/host.ts";
import { ScheduledBackups } from "./engine/maintenance/backups.ts";
import { recoveryPending } from "./engine/maintenance/recovery.ts";
import { checkJournal, checkOpenOptions, logOf, type OpenOptions, planOf } from "./engine/open-options.ts";
import { sharedEngine } from "./engine/shared-engine.ts";
import { Holdfast } from "./holdfast.ts";
import { locate } from "./store/open-store.ts";
import { createFolder } from "./store/sqlite/faults.ts";

const DEFAULT_PATH = ".holdfast/work.db";

/** @internal Opens a handle. The public `open` loads this module on use. */
export async function openHandle(
  where: string | undefined,
  options: OpenOptions,
  givenRecovery?: "auto" | "manual" | "later",
): Promise<Holdfast> {
  checkOpenOptions(options);
  const recovery = givenRecovery ?? options.recovery ?? "auto";
  if (where !== undefined && typeof where !== "string") {
    throw invalidOption(`\`where\` must be a string, got ${describeValue(where)}.`, 'Give a path, ":memory:" or "postgres://…".');
  }
  const path = checkStorable(where ?? (process.env["HOLDFAST_DB"] || DEFAULT_PATH), "`where`");
  if (path === DEFAULT_PATH && options.create !== false) createFolder(dirname(path), options.mode ?? DEFAULT_FILE_MODE);
  const sinks = checkSinks(options.sinks);
  const location = locate(path, options);
  const backups = planOf(location, options);
  const program = toStorable(options.program ?? process.argv[1] ?? process.title);
  const log = logOf(options);
  const start = () =>
    Engine.open(location, {
      clock: clockFrom(options.clock),
      log,
      program,
      recovery,
      backsUp: options.backups?.beforeMigration !== false,
      ...definedOnly({
        user: options.user && toStorable(options.user),
        onStop: options.onStop,
        artifacts: options.artifacts,
        telemetry: options.telemetry,
        writeWaitMs: options.busyTimeout === undefined ? undefined : toMillis(options.busyTimeout, "busyTimeout"),
        journal: options.journal === undefined ? undefined : checkJournal(location, options.journal),
      }),
    });
  const { key } = location;
  const { engine, leave } = key === null ? await ownEngine(start) : await sharedEngine(key, start);
  try {
    if (key !== null) rejectOtherSettings(engine, options, recovery);
    const stopServices = await startServices(engine, sinks, backups);
    return new Holdfast(engine, () => stopServices().finally(leave));
  } catch (error) {
    await leave();
    throw error;
  }
}

/** @internal Opens a handle for operators. By default it shows what a crash has left, and leaves recovery to the workers. */
export function openToOperate(where: string | undefined, options: OpenOptions): Promise<Holdfast> {
  return openHandle(where, options, options.recovery ?? "later");
}

/** @internal Opens a handle for a command that only reads. It writes nothing, and recovers nothing. */
export async function openReadOnly(where: string, options: OpenOptions): Promise<Holdfast> {
  const { artifacts, driver, schema } = options;
  const located = { create: false, ...definedOnly({ driver, schema }) };
  const engine = await Engine.open(locate(where, located), {
    clock: clockFrom(options.clock),
    log: logOf(options),
    program: toStorable(options.program ?? process.title),
    onlyReads: true,
    backsUp: options.backups?.beforeMigration !== false,
    ...definedOnly({ artifacts }),
  });
  return new Holdfast(engine, () => engine.close());
}

async function ownEngine(start: () => Promise<Engine>): Promise<{ engine: Engine; leave: () => Promise<void> }> {
  const engine = await start();
  return { engine, leave: () => engine.close() };
}

/** Starts sinks and backups, except on a damaged or read-only database, which cannot store how far a delivery has got. */
async function startServices(
  engine: Engine,
  sinks: ReturnType<typeof checkSinks>,
  plan: BackupPlan | null,
): Promise<() => Promise<void>> {
  if (engine.store.damage.damaged !== null || engine.isReadOnly) return async () => {};
  const stopSinks = await engine.relays.use(sinks);
  if (plan === null) return stopSinks;
  const backups = new ScheduledBackups(engine, plan);
  backups.start();
  return async () => {
    await backups.stop();
    await stopSinks();
  };
}

/** Rejects settings that differ from the open handle's: two SQLite libraries on one file break each other's locks. */
function rejectOtherSettings(
  engine: Engine,
  { driver, durability, journal }: OpenOptions,
  recovery: "auto" | "manual" | "later",
): void {
  const { location, store } = engine;
  if (engine.isReadOnly && recovery !== "manual") throw recoveryPending(location.name);
  if (driver !== undefined && location.kind === "sqlite" && location.driver !== driver) {
    throw new HoldfastError(
      "DRIVER_DIFFERS",
      `This process has ${location.name} open with "${location.driver}" already, and "${driver}" was asked for.`,
      "Use the same driver for a file in the whole process.",
    );
  }
  if (journal !== undefined && journal !== store.maintenance.journaled) {
    throw new HoldfastError(
      "JOURNAL_DIFFERS",
      `This process has ${location.name} open ${journal ? "without" : "with"} a journal already.`,
      "Give `journal` in the first open() of this process, or leave it out.",
    );
  }
  if (durability !== undefined && durability !== store.durability) {
    throw new HoldfastError(
      "DURABILITY_DIFFERS",
      `${location.name} is open with durability "${store.durability}", and "${durability}" was asked for.`,
      "Leave `durability` out to use the database's own.",
    );
  }
}
