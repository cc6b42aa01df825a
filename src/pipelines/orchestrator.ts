import { randomBytes } from "node:crypto";
import {
  type BuildProgress,
  hasEnded,
  nextBuildMove,
  nextPausedMove,
  startsNothingNew,
  type WantedMove,
} from "../core/pipelines/build.ts";
import { TOKEN_BYTES, tokenOf } from "../core/pipelines/budget.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { gatherSegment } from "../core/pipelines/work.ts";
import type { Engine } from "../engine/engine.ts";
import { said } from "../engine/log.ts";
import { CLEARED } from "../engine/maintenance/janitor.ts";
import type { Worker } from "../engine/worker.ts";
import { buildById, type BuildRow, type LedBuild, type LockToken } from "../store/builds.ts";
import { BuildScope } from "./live-targets.ts";
import type { Model } from "./model.ts";

/** However many commits there are, it looks no more often than this. */
const LOOK = 25;
/** And no less often: nobody else's news may have been lost. */
const LOOK_AGAIN = 1_000;
/** Work that is under way when a build pauses has been paid for: it is waited for, this long. */
const IN_FLIGHT = 24 * 3_600_000;

export interface OrchestratorParts {
  engine: Engine;
  model: Model;
  row: LedBuild;
  lock: LockToken;
  worker: Worker;
  /** It is about to let go of the build: what can be gone on with at any point need not come to its end. */
  onLeave: () => void;
  onRow: (row: BuildRow) => void;
}

/**
 * Leads one build: sees to its rounds and to its end, and says that it lives. The work itself is done by workers, here and
 * elsewhere. Every write of it names the lock's token, and when that is gone, it stops.
 */
export class Orchestrator {
  /** The build as it was left. Resolves in every state. */
  readonly ended: Promise<{ row: BuildRow; token?: string }>;
  readonly #parts: OrchestratorParts;
  readonly #scope: BuildScope;
  readonly #end = Promise.withResolvers<{ row: BuildRow; token?: string }>();
  readonly #quit: (() => void)[] = [];
  #looking = false;
  #again = false;
  #timer: (() => void) | null = null;
  /** When that is, on the monotonic clock. */
  #due = 0;
  #over = false;
  /** Its queue rests until what builds before it have left is cleared away. */
  #rests: boolean;
  /** What failed before the resume is still to be listed again. */
  #retries: boolean;
  #stopping: Promise<void> | null = null;

  constructor(parts: OrchestratorParts) {
    this.#parts = parts;
    this.#rests = parts.row.rests;
    this.#retries = parts.row.retries;
    this.#scope = new BuildScope(parts.engine.store, parts.model, parts.row);
    this.ended = this.#end.promise;
    const { engine, lock } = parts;
    this.#quit.push(
      engine.store.onChange(() => this.#soon(LOOK)),
      engine.leads.watch(lock, () => this.#lost()),
    );
    this.#soon(0);
  }

  /** Lets go of it: what runs may end within the worker's time, and the build goes on when somebody resumes it. */
  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  async #stop(): Promise<void> {
    if (this.#over) return;
    this.#parts.onLeave();
    await this.#parts.worker.stop();
    // What has ended meanwhile may have been the last.
    while (this.#looking) await new Promise((resolve) => setImmediate(resolve));
    await this.#look();
    if (!this.#over) await this.#move({ move: "crash", reason: "stopped" });
    await this.ended;
  }

  #soon(delay: number): void {
    if (this.#over) return;
    if (this.#looking) return void (this.#again = true);
    const { clock } = this.#parts.engine;
    const due = clock.monotonic() + delay;
    if (this.#timer !== null && this.#due <= due) return;
    this.#timer?.();
    this.#due = due;
    this.#timer = clock.after(delay, () => void this.#look());
  }

  async #look(): Promise<void> {
    if (this.#looking || this.#over) return;
    this.#timer?.();
    this.#timer = null;
    this.#looking = true;
    this.#again = false;
    const {
      engine,
      row: { id },
    } = this.#parts;
    try {
      const row = await buildById(engine.store.builds, id);
      if (row !== null) {
        this.#parts.onRow(row);
        await this.#lead(row);
      }
    } catch (error) {
      engine.log.warn("leading a build failed; it is tried again", { build: id, ...said(error) });
    }
    this.#looking = false;
    this.#soon(this.#again ? LOOK : LOOK_AGAIN);
  }

  async #lead(row: BuildRow): Promise<void> {
    if (row.state !== "ACTIVE") return this.#finish(row);
    if (this.#rests) await this.#letRun(row);
    if (this.#stopping !== null && row.open > 0) return;
    const progress: BuildProgress = { ...row, running: 0, left: row.open };
    const isFailing = startsNothingNew(progress);
    if (this.#retries && !isFailing && row.listing === "done" && (row.round === 0 || row.open === 0)) return this.#retry(row);
    if (!isFailing && row.listing === "done" && row.open === 0 && row.blocked === null) {
      const next = this.#nextRound(row);
      if (next !== null) {
        await this.#parts.engine.store.builds.nextRound(
          row.id,
          next,
          this.#parts.model.listingJob(row.key, next),
          this.#parts.lock,
        );
        return;
      }
    }
    const move = nextBuildMove(progress);
    if (move !== null) await this.#move(move);
  }

  async #letRun({ id }: BuildRow): Promise<void> {
    const { engine, lock } = this.#parts;
    const clearing = { pipeline: lock.pipeline, which: "all", limit: CLEARED } as const;
    while (!this.#over && (await engine.store.work.clearWork(clearing)) > 0);
    this.#rests = !(await engine.store.builds.letRun(id, lock));
  }

  /** Back to the first round: gathers behind what failed are listed again, and run again where their members have changed. */
  async #retry({ id, key }: BuildRow): Promise<void> {
    const { engine, model, lock } = this.#parts;
    this.#retries = !(await engine.store.builds.nextRound(id, 0, model.listingJob(key, 0, "failed"), lock));
  }

  /** The round of the next gather, if it is to be run. */
  #nextRound({ round, failed }: BuildRow): number | null {
    const segment = gatherSegment(this.#parts.model.segments, round + 1);
    const gather = segment?.stages[0];
    if (gather === undefined || !this.#scope.includes(this.#parts.model.place(gather.name))) return null;
    return failed === 0 || gather.partial ? round + 1 : null;
  }

  async #move(wanted: WantedMove): Promise<void> {
    const { engine, row, lock } = this.#parts;
    const minted = wanted.move === "pause" ? { bytes: new Uint8Array(randomBytes(TOKEN_BYTES)) } : undefined;
    try {
      const moved = await engine.store.builds.move(row.id, wanted, lock, minted);
      if (moved === null) return this.#lost();
      await this.#finish(moved, minted === undefined ? undefined : tokenOf(minted.bytes));
    } catch (error) {
      // Attempts are still in flight: their ends are news.
      if (!(error instanceof HoldfastError) || error.code !== "BUILD_NOT_READY") throw error;
    }
  }

  /** Somebody else leads it, or an operator has broken the lock: whatever is written here now is refused. */
  #lost(): void {
    if (this.#over) return;
    const { engine, row } = this.#parts;
    const hint = `Another process leads it by now; if none does, \`holdfast builds resume ${row.id}\`.`;
    engine.log.error("the lock of a pipeline is gone; its build is let go", { build: row.id, hint });
    void this.#read().then((row) => this.#finish(row));
  }

  async #finish(row: BuildRow, token?: string): Promise<void> {
    if (this.#over) return;
    this.#over = true;
    this.#timer?.();
    for (const quit of this.#quit.splice(0)) quit();
    this.#parts.onLeave();
    await this.#parts.worker.stop(row.state === "BUDGET_PAUSE" ? { drain: IN_FLIGHT } : {});
    await this.#clear(row.state === "BUDGET_PAUSE" ? await this.#afterPause(row) : row);
    const last = await this.#read().catch(() => row);
    this.#parts.onRow(last);
    this.#end.resolve({ row: last, ...(token === undefined || hasEnded(last.state) ? {} : { token }) });
  }

  /** What was in flight at the pause has ended: where that leaves nothing that money would help, nobody is asked for any. */
  async #afterPause(paused: BuildRow): Promise<BuildRow> {
    const { engine } = this.#parts;
    try {
      const row = await this.#read();
      const move = row.state === "BUDGET_PAUSE" ? nextPausedMove({ ...row, running: 0, left: row.open }) : null;
      return (move && (await engine.store.builds.move(row.id, move, { by: engine.actor }))) ?? row;
    } catch (error) {
      // Attempts in other processes are still in flight; whoever goes on with it finds out.
      const isEarly = error instanceof HoldfastError && error.code === "BUILD_NOT_READY";
      if (!isEarly) engine.log.warn("a paused build was not looked at again", { build: paused.id, ...said(error) });
      return paused;
    }
  }

  /** What will not be done any more is nobody's. If that does not come to its end here, janitors go on with it. */
  async #clear({ state, pipeline, id: build }: BuildRow): Promise<void> {
    const { janitor, log } = this.#parts.engine;
    if (!hasEnded(state)) return;
    await janitor
      .clear(pipeline)
      .catch((error: unknown) => log.warn("clearing away what is left of a build failed", { build, ...said(error) }));
  }

  async #read(): Promise<BuildRow> {
    const { engine, row } = this.#parts;
    return (await buildById(engine.store.builds, row.id)) ?? row;
  }
}
