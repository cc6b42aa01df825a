import type { Command } from "commander";
import { age, ahead } from "../core/age.ts";
import { HoldfastError } from "../core/errors.ts";
import { bootId } from "../runtime/boot.ts";
import type { Holdfast } from "../runtime/holdfast.ts";
import { LEAD_TTL, type LeadView } from "../store/builds.ts";
import type { LockView } from "../store/locks.ts";
import type { Life } from "../store/processes.ts";
import type { Store } from "../store/store.ts";
import { openExisting } from "./database.ts";
import { examples } from "./help.ts";
import { paint } from "./terminal/colours.ts";
import { answer } from "./terminal/output.ts";
import { type Column, table } from "./terminal/table.ts";
import { oneLine } from "./terminal/text.ts";

export function unlockCommand(parent: Command): void {
  parent
    .command("unlock")
    .summary("remove a lock, or a pipeline's lead, that was left behind")
    .description(
      "Remove a lock that was left behind, or the lead of a pipeline's build: the build is then CRASHED, and the next run goes " +
        "on with it. One whose holder lives is refused with exit code 4. Without a name: show what is locked.",
    )
    .argument("[name]", "the lock's or the pipeline's name, as in `holdfast status`")
    .option("--force", "remove it even while it is held: the holder of a lock is not told, that of a lead stops")
    .addHelpText("after", examples("holdfast unlock", "holdfast unlock nightly-index", "holdfast unlock docs --force"))
    .action(async (name: string | undefined, options: { force?: boolean }, command: Command) => {
      await using hf = await openExisting(command);
      if (name === undefined) return await show(hf, command);
      const { store } = hf.engine;
      const lock = await store.locks.get(name);
      if (lock !== null) return await unlock(hf, command, lock, options.force);
      const lead = await store.builds.getLead(name);
      if (lead === null) throw noSuchLock(name, await store.locks.all(), await store.builds.leads());
      await unlead(hf, command, lead, options.force);
    });
}

async function unlock(hf: Holdfast, command: Command, lock: LockView, force = false): Promise<void> {
  const { store, clock } = hf.engine;
  const { name } = lock;
  // Whoever has acquired it since the look holds it.
  if (!(await store.locks.break(name, { stale: !force }))) throw held((await store.locks.get(name)) ?? lock, clock.now());
  answer(
    command,
    { name, holder: lock.holder, forced: !lock.stale },
    () => `Unlocked ${oneLine(name)}: it was held by ${oneLine(lock.holder)}.`,
  );
}

async function unlead(hf: Holdfast, command: Command, lead: LeadView, force = false): Promise<void> {
  const { store, clock, actor } = hf.engine;
  const life = await lifeOf(store, lead);
  const lives = mayLive(lead, life, clock.now());
  if (lives && !force) throw leads(lead, life, clock.now());
  // Whoever has taken it since the look lives.
  if (!(await store.builds.breakLead(lead.pipeline, actor, force ? undefined : lead.holder))) throw taken(lead.pipeline);
  const { pipeline, build, pid, host, program } = lead;
  answer(
    command,
    { name: pipeline, build, pid, host, program, forced: lives },
    () => `Unlocked ${oneLine(pipeline)}: build ${build} was led by ${sayHolder(lead)}. The next run goes on with it.`,
  );
}

/** `gone`: nobody has registered under that number any more. */
async function lifeOf(store: Store, { holder }: LeadView): Promise<Life | "gone"> {
  return (await store.processes.probe(bootId())).find(({ process }) => process.id === holder)?.life ?? "gone";
}

/** One on another host is believed for as long as it says so. */
function mayLive({ beatAt }: LeadView, life: Life | "gone", now: number): boolean {
  return life === "alive" || (life === "unknown" && now - beatAt < LEAD_TTL);
}

/** What is locked, and who leads what. */
async function show({ engine: { store, clock } }: Holdfast, command: Command): Promise<void> {
  const [locks, led] = await Promise.all([store.locks.all(), store.builds.leads()]);
  const now = clock.now();
  const withLife = await Promise.all(led.map(async (lead) => ({ ...lead, life: await lifeOf(store, lead) })));
  answer(command, { locks, leads: withLife }, () => {
    if (locks.length + led.length === 0) return paint("dim", "Nothing is locked.");
    const rows: Held[] = [
      ...locks.map(({ name, holder, acquiredAt, stale }) => ({ name, holder, acquiredAt, life: stale ? "expired" : "held" })),
      ...withLife.map((lead) => ({ name: lead.pipeline, holder: sayHolder(lead), acquiredAt: lead.acquiredAt, life: lead.life })),
    ];
    return table(columns(now), rows);
  });
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
    { title: "SINCE", right: true, value: ({ acquiredAt }) => age(now - acquiredAt) },
    { title: "LIFE", value: ({ life }) => life },
  ];
}

function sayHolder({ pid, host, program }: LeadView): string {
  return `pid ${pid} on ${oneLine(host)} (${oneLine(program)})`;
}

function taken(pipeline: string): HoldfastError {
  return new HoldfastError(
    "LOCK_HELD",
    `The lead of pipeline "${pipeline}" has just been let go, or taken by somebody else.`,
    "Look again: holdfast unlock.",
  );
}

function leads(lead: LeadView, life: Life | "gone", now: number): HoldfastError {
  const lives = life === "alive" ? "which lives" : `which has last been heard of ${age(now - lead.beatAt)} ago`;
  return new HoldfastError(
    "LOCK_HELD",
    `Build ${lead.build} of pipeline "${lead.pipeline}" is led by ${sayHolder(lead)}, ${lives}.`,
    "Wait for it, stop that process, or add --force: it then stops, and the next run goes on with its build.",
  );
}

function held({ name, holder, acquiredAt, expiresAt }: LockView, now: number): HoldfastError {
  return new HoldfastError(
    "LOCK_HELD",
    `The lock ${name} is held by ${holder}, since ${age(now - acquiredAt)}, until it expires in ${ahead(expiresAt - now)} or is renewed.`,
    "Wait for it, stop its holder, or add --force if you are sure that the holder is gone.",
  );
}

function noSuchLock(name: string, locks: readonly LockView[], led: readonly LeadView[]): HoldfastError {
  const others = [...locks.map((lock) => lock.name), ...led.map(({ pipeline }) => pipeline)].join(", ");
  return new HoldfastError(
    "NO_SUCH_LOCK",
    `There is no lock ${name}.`,
    others === "" ? "Nothing is locked." : `There are: ${others}.`,
  );
}
