/**
 * The main job: a pipeline over a folder of documents (parse, a language model's summary of each, an index), run on the
 * embedded store. It is run twice, in processes of their own: once without interruption, and once killed with SIGKILL in
 * the middle and started again. Then it asks the model's own books, and Holdfast's, whether anything was paid twice.
 *
 *   npm start            or: node examples/tide-pools/main.ts [folder]
 *
 * The model is made up (`service.ts`), and so are its prices; everything else is real. It leaves its database and what it
 * has made in `.holdfast/tide-pools`, or in the folder that it is given.
 */
import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { join, relative } from "node:path";
import { styleText } from "node:util";
import { type Build, open } from "../../src/index.ts";
import { Bar } from "../bar.ts";
import type { News } from "./pass.ts";
import { AT_ONCE, LIBRARY } from "./pipeline.ts";
import { Service } from "./service.ts";
import { dollars, heading, line, verdict } from "./table.ts";

const DOCUMENTS = readdirSync(LIBRARY).length;

/** All that is known of one pass. */
interface Pass {
  /** Handlers that were called, as "stage target". */
  ran: string[];
  /** As it was seen last. */
  build: Build | null;
  /** What a build that was left had cost when it was found. */
  found: number;
  exported: string;
}

const folder = process.argv[2] ?? join(".holdfast", "tide-pools");
rmSync(folder, { recursive: true, force: true });

const service = await new Service().listen();
const started = performance.now();
console.log(`${DOCUMENTS} documents: parse → summarise → index, four at a time.\n`);

const whole = await pass("whole", "without interruption");
const killed = await pass("killed", "to be killed in the middle", Math.ceil(DOCUMENTS / 2));
const left = await whatIsLeft(killed);
const resumed = await pass("killed", "started again");
const seconds = ((performance.now() - started) / 1_000).toFixed(1);
await service[Symbol.asyncDispose]();
report();

/** Runs `pass.ts` to its end, or until so many summaries are done and as many as can be are under way: the worst moment. */
async function pass(name: string, note: string, killAt = Number.POSITIVE_INFINITY): Promise<Pass> {
  const at = join(folder, name);
  mkdirSync(at, { recursive: true });
  const child = fork(new URL("./pass.ts", import.meta.url), [at, `${service.url}/${name}`]);
  const seen: Pass = { ran: [], build: null, found: 0, exported: "" };
  const bar = new Bar(DOCUMENTS, 25);
  let done = 0;
  service.onRequest = (_, underWay) => {
    if (done < killAt || underWay < AT_ONCE || child.killed) return;
    child.kill("SIGKILL");
    bar.end(done, `killed with SIGKILL (pid ${child.pid})`);
  };
  child.on("message", (news: News) => {
    if ("ran" in news) seen.ran.push(news.ran);
    else if ("found" in news) seen.found = news.found.spent.usd;
    else if ("exported" in news) seen.exported = news.exported;
    else if (!child.killed) {
      seen.build = news.build;
      done = news.build.stages["summarise"]?.ran ?? 0;
      bar.show(done, `${dollars(news.build.spent.usd)}  ${note}`);
    }
  });
  await ended(child, killAt < DOCUMENTS ? "SIGKILL" : 0);
  if (!child.killed) bar.end();
  return seen;
}

async function ended(child: ChildProcess, how: number | string): Promise<void> {
  // What it has said last is there when the channel is closed.
  const [[code, signal]] = (await Promise.all([once(child, "exit"), once(child, "disconnect")])) as [
    [number | null, string | null],
    [],
  ];
  if ((code ?? signal) !== how) throw new Error(`A pass ended with ${code ?? signal} instead of ${how}.`);
}

/** Looks into the database as the kill has left it, before anybody repairs anything. */
async function whatIsLeft({ build }: Pass): Promise<{ spent: number; ran: number; finished: string[] }> {
  await using hf = await open(join(folder, "killed", "work.db"), { recovery: "manual" });
  const id = build?.id ?? "";
  const finished: string[] = [];
  for (const stage of ["parse", "summarise"])
    for (const target of readdirSync(LIBRARY)) {
      const isThere = await hf.builds.output(id, stage, target).then(
        () => true,
        () => false,
      );
      if (isThere) finished.push(`${stage} ${target}`);
    }
  const row = (await hf.builds.get(id)) as Build;
  const ran = Object.values(row.stages).reduce((sum, { ran }) => sum + ran, 0);
  return { spent: row.spent.usd, ran, finished };
}

function report(): void {
  const [one, two] = [service.bill("/whole"), service.bill("/killed")];
  const total = resumed.build?.spent.usd ?? Number.NaN;
  const charged = cents(resumed.found - left.spent);
  const repeated = resumed.ran.filter((work) => left.finished.includes(work));
  const again = resumed.ran.filter((work) => killed.ran.includes(work));
  const sums = [checksums(whole), checksums(resumed)] as const;
  const lost = sums[0].length - sums[1].length;

  heading("Killed in the middle and resumed");
  const proofs = [
    verdict("the service billed one pass", one.usd === two.usd && two.billed === DOCUMENTS, dollars(two.usd)),
    // A request that had not been sent when its process was killed is charged, and paid later.
    verdict(
      "Holdfast counted that, or more for attempts in flight",
      total >= two.usd && total <= cents(two.usd + charged),
      dollars(total),
    ),
    verdict("finished steps that ran again", repeated.length === 0 && left.finished.length === left.ran, String(repeated.length)),
    verdict("lost steps", resumed.build?.state === "SUCCESS" && lost === 0, String(lost)),
    verdict("the same bytes as without a kill", sums[0].join() === sums[1].join(), `${sums[1].length} files`),
  ];
  heading("What the service billed");
  line("one pass", dollars(one.usd), `${one.requests} requests`);
  line("killed and resumed", dollars(two.usd), `${two.requests} requests, ${two.billed} of them new`);
  heading("What Holdfast counted");
  line("before the kill", dollars(left.spent), `${left.finished.length} of ${DOCUMENTS * 2 + 1} steps were finished`);
  line("in flight at the kill", dollars(charged), `${again.length} steps, charged by their estimates`);
  line("after the kill", dollars(cents(total - resumed.found)), `${resumed.ran.length} steps`);
  line("in all", dollars(total), "");
  console.log(`\nFinished in ${seconds} s. The exported files:`);
  console.log(styleText("bold", relative(process.cwd(), resumed.exported) || resumed.exported));
  process.exitCode = proofs.every(Boolean) ? 0 : 1;
}

/** Of all that was exported but the manifest, which names the build. */
function checksums({ exported }: Pass): string[] {
  const lines = readFileSync(join(exported, "checksums.txt"), "utf8").trim().split("\n");
  return lines.filter((text) => !text.endsWith("  manifest.json")).sort();
}

/** Sums of decimals, without what floating point adds to them. */
function cents(usd: number): number {
  return Math.round(usd * 1e6) / 1e6;
}
