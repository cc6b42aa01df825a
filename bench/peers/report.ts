import { mkdirSync, writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { join } from "node:path";
import { median } from "../measure.ts";
import type { Line, Suite, SuiteOptions } from "../suite.ts";
import { type Contest, PeersSuite } from "./suite.ts";

const DOCS = join(import.meta.dirname, "../../docs");

/** Holdfast against queues and workflow engines, as a user sees them. */
export async function openPeersSuite({ quick, write }: SuiteOptions): Promise<Suite> {
  const suite = await PeersSuite.open(
    quick
      ? { rounds: 1, jobs: 10_000, warmJobs: 2_000, processes: [1, 2], pings: 50, targets: 1_000, idleMs: 5_000 }
      : { rounds: 3, jobs: 100_000, warmJobs: 40_000, processes: [1, 2, 4, 8], pings: 60, targets: 5_000, idleMs: 60_000 },
  );
  const done: Contest[] = [];
  const parts = Object.entries(suite.parts).map(([name, measure]) => {
    const lines = async () => {
      const contests = await measure();
      done.push(...contests);
      return contests.map(lineOf);
    };
    return [name, lines] as const;
  });
  const close = async () => {
    await suite.close();
    if (write) writePage(done);
  };
  return { heading: "", parts: Object.fromEntries(parts), close };
}

function lineOf(contest: Contest): Line {
  return { text: textOf(contest), holds: true, data: contest };
}

function textOf({ what, unit, results }: Contest): string {
  const lines = results.map(({ player, rounds }) => `  ${player.padEnd(28)} ${cell(rounds)} ${unit}`);
  return [what, ...lines].join("\n");
}

/** The median, and the lowest and highest of several rounds. */
function cell(rounds: readonly number[]): string {
  const middle = say(median([...rounds]));
  return rounds.length === 1 ? middle : `${middle} (${say(Math.min(...rounds))}–${say(Math.max(...rounds))})`;
}

function say(value: number): string {
  return value >= 99.5 ? Math.round(value).toLocaleString("en") : value.toPrecision(2);
}

function writePage(contests: readonly Contest[]): void {
  const sections = contests.map((contest, i) => sectionOf(contest, `performance-${i + 1}.svg`));
  const machine = `${cpus().length} × ${cpus()[0]?.model.trim() ?? "?"}, Node ${process.version}`;
  const page = `<!-- Generated from a measurement by bench/peers/report.ts: run \`npm run bench -- --peers --write\`, do not edit. -->

# Performance

What users see, measured against other queues and workflow engines in one run, in alternating rounds. The tables show
the median, and in brackets the lowest and highest round. Repeat it with \`npm run bench -- --peers\`. All servers run on
the same machine: ${machine}.

Holdfast runs at its default settings: a commit is on the disk before it is acknowledged. PostgreSQL has \`fsync\` and
\`synchronous_commit\` on. plainjob commits to SQLite without a sync, and Redis syncs its log once a second: after a power
cut both may have lost what they acknowledged. Each peer runs in the fastest of the settings that were tried; they are
in \`bench/peers\` and \`bench/postgres\`. Every drain checks that each job ran once, every pipeline that each step did.
A drain is measured once each process has run 40,000 jobs on average: workers live for hours, and the first seconds of a
process are compiling. Resident memory includes about 15 MB that Node takes to strip the types of the benchmark itself.

${sections.join("\n")}`;
  writeFileSync(join(DOCS, "performance.md"), page);
}

function sectionOf(contest: Contest, file: string): string {
  const { what, unit, results } = contest;
  mkdirSync(join(DOCS, "images"), { recursive: true });
  writeFileSync(join(DOCS, "images", file), chart(contest));
  const rows = results.map(({ player, rounds }) => `| ${player} | ${cell(rounds)} |`);
  const title = what.charAt(0).toUpperCase() + what.slice(1);
  return [`## ${title}`, "", `![${title}](images/${file})`, "", `| | ${unit} |`, "|---|---:|", ...rows, ""].join("\n");
}

const WIDTH = 720;
const LABEL = 200;
const VALUE = 110;
const ROW = 26;

/** Bars of the medians; a line spans the lowest and the highest round. Readable on light and dark pages. */
function chart({ what, unit, results }: Contest): string {
  const most = Math.max(...results.flatMap(({ rounds }) => rounds));
  const scale = (value: number): number => (value / most) * (WIDTH - LABEL - VALUE);
  const bars = results.map(({ player, rounds }, i) => {
    const [y, middle] = [i * ROW + 4, median([...rounds])];
    const isOurs = player.startsWith("Holdfast");
    const at = (value: number): string => (LABEL + scale(value)).toFixed(1);
    return `
  <text x="${LABEL - 8}" y="${y + 13}" text-anchor="end"${isOurs ? ' font-weight="600"' : ""}>${player}</text>
  <rect x="${LABEL}" y="${y}" width="${scale(middle).toFixed(1)}" height="18" rx="2" fill="${isOurs ? "#2563eb" : "#94a3b8"}"/>
  <line x1="${at(Math.min(...rounds))}" x2="${at(Math.max(...rounds))}" y1="${y + 9}" y2="${y + 9}" stroke="#475569"/>
  <text x="${LABEL + scale(Math.max(...rounds)) + 6}" y="${y + 13}">${say(middle)} ${unit}</text>`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${results.length * ROW + 4}" font-family="system-ui, sans-serif" font-size="13" role="img">
  <title>${what}, ${unit}</title>
  <style>text { fill: #334155 } @media (prefers-color-scheme: dark) { text { fill: #cbd5e1 } }</style>${bars.join("")}
</svg>
`;
}
