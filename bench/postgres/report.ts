import { styleText } from "node:util";
import { type Name, NAMES, PEERS } from "./contender.ts";
import type { Contest } from "./contests.ts";

const COLUMN = 20;

export function heading(): string {
  const names = NAMES.map((name) => name.padStart(COLUMN)).join("");
  return `${"".padEnd(34)}${names}${"to the best peer".padStart(18)}${"to raw".padStart(8)}`;
}

/** Of each the best round, and the worst, where they were counted apart. */
export function textOf(contest: Contest): string {
  const verdict = holds(contest) ? styleText("green", "ahead") : styleText("red", "behind");
  return [
    `${contest.what}, ${contest.unit}`.padEnd(34),
    ...NAMES.map((name) => cell(contest, name).padStart(COLUMN)),
    ratio(contest, PEERS).padStart(18),
    ratio(contest, ["raw SQL"]).padStart(8),
    ` ${verdict}`,
  ].join("");
}

/** Ours against the best of the peers. */
export function holds(contest: Contest): boolean {
  const ours = bestOf(contest, ["Holdfast"]);
  const theirs = bestOf(contest, PEERS);
  return contest.unit === "ms" ? ours <= theirs : ours >= theirs;
}

export function summaryOf(contest: Contest): object {
  return { ...contest, toBestPeer: bestOf(contest, ["Holdfast"]) / bestOf(contest, PEERS), holds: holds(contest) };
}

function ratio(contest: Contest, to: readonly Name[]): string {
  const value = bestOf(contest, ["Holdfast"]) / bestOf(contest, to);
  return Number.isFinite(value) ? `× ${value.toFixed(2)}` : "";
}

function bestOf({ unit, results }: Contest, names: readonly Name[]): number {
  const all = names.flatMap((name) => results[name] ?? []);
  if (all.length === 0) return Number.NaN;
  return unit === "ms" ? Math.min(...all) : Math.max(...all);
}

function cell({ unit, results }: Contest, name: Name): string {
  const rounds = results[name];
  if (rounds === undefined) return "–";
  const [best, worst] = [Math.max(...rounds), Math.min(...rounds)].sort((a, b) => (unit === "ms" ? a - b : b - a));
  return rounds.length === 1 ? say(best as number) : `${say(best as number)} (${say(worst as number)})`;
}

function say(value: number): string {
  return value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(2);
}
