import { type ChildProcess, fork, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { type Browser, chromium, type Page } from "playwright-core";
import { buildUi } from "../scripts/ui.ts";
import { type Holdfast, items, job, NonRetryableError, open, pipeline } from "../src/index.ts";
import { type Figure, median, quantile } from "./measure.ts";
import { inScratch, payload } from "./scratch.ts";

const CHROMIUM = "/usr/bin/chromium";
const CLI = fileURLToPath(new URL("../bin/holdfast.js", import.meta.url));
const TOKEN = "a-token-for-the-bench";
const FIRST_PAINT_MS = 300;
const SHOWN_MS = 500;
const PAGE_MS = 150;
const SLOWER_PERCENT = 3;
const PAINTS = 15;
const REQUESTS = 100;
/** Long enough for several refreshes of the page. */
const DRAINED_JOBS = 200_000;
/** The code is compiled by then, and the check of a database that was just opened is over. */
const WARM_ROUNDS = 8;

interface Sizes {
  jobs: number;
  targets: number;
  rounds: number;
}

/**
 * The dashboard that `holdfast ui` serves from a database of many finished jobs: how soon a browser paints it, how long each page
 * of the API that it calls takes, and how much slower a worker drains while it is open.
 */
export async function dashboard(quick: boolean): Promise<Figure[]> {
  const sizes = quick ? { jobs: 200_000, targets: 500, rounds: 5 } : { jobs: 10_000_000, targets: 20_000, rounds: 21 };
  await buildUi();
  return inScratch(async (folder) => {
    const path = join(folder, "work.db");
    const ids = await fill(path, sizes);
    await using served = await serve(path);
    const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
    try {
      const page = await logIn(browser, served.login);
      const paths = await visit(page, served.address, ids);
      return [
        ...(await firstPaint(browser, page, served.address)),
        ...(await requests(served.address, paths)),
        await slowdown(path, page, served.address, sizes.rounds),
      ];
    } finally {
      await browser.close();
    }
  });
}

interface Ids {
  failed: string;
  succeeded: string;
  build: string;
}

const mail = job<{ url: string; i: number }>({
  name: "send-mail",
  queue: "mail",
  retry: { attempts: 1 },
  run: async ({ input }) => {
    if (input.i % 10_000 === 9_999) throw new NonRetryableError(`550 mailbox ${input.i} is not available`);
  },
});
const resize = job<{ url: string; i: number }>({ name: "resize", queue: "images", run: async () => {} });
const sync = job<{ account: number }>({
  name: "sync",
  limit: { concurrency: 2, key: ({ account }) => String(account) },
  run: async () => {},
});

/** Finished jobs of two queues, a few that wait, and a build that has spent its budget. */
async function fill(path: string, { jobs, targets }: Sizes): Promise<Ids> {
  await using hf = await open(path, { durability: "process", log: false });
  const succeeded = await hf.enqueue(resize, payload(0), { tags: ["first"] });
  for (let done = 0; done < jobs; done += 100_000) await drain(hf, done, Math.min(100_000, jobs - done));
  const { items: newest } = await hf.jobs.list({ state: "failed", limit: 1, order: "newest" });
  await hf.queues.pause("sync");
  for (let account = 0; account < 20; account++) await hf.enqueue(sync, { account: account % 5 });
  await hf.schedule(sync, { key: "nightly", cron: "0 3 * * *", input: { account: 1 } });
  const paid = pipeline("paid", { budget: { usd: (targets * 0.01) / 2 } })
    .source(items(() => Array.from({ length: targets }, (_, i) => `target-${i}`), { id: (one) => one }))
    .stage("fetch", { version: 1 }, ({ target }) => ({ text: target.id }))
    .stage("summarise", { version: 1, estimate: { usd: 0.01 } }, ({ cost }) => {
      cost({ usd: 0.01 });
      return { summary: "short" };
    });
  const build = await (await hf.builds.start(paid)).done();
  return { failed: newest[0]?.id as string, succeeded: succeeded.id, build: build.id };
}

async function drain(hf: Holdfast, from: number, count: number): Promise<void> {
  for (const one of [mail, resize])
    for (let i = 0; i < count / 2; i += 1_000)
      await hf.enqueueMany(
        one,
        Array.from({ length: 1_000 }, (_, k) => payload(from + i + k)),
      );
  const worker = hf.work([mail, resize]);
  for (const one of [mail, resize]) await hf.jobs.wait(await hf.enqueue(one, payload(0), { priority: -1 }));
  await worker.stop();
}

interface Served extends AsyncDisposable {
  address: string;
  /** An address that logs a browser in, once. */
  login: string;
}

async function serve(path: string): Promise<Served> {
  const env = { ...process.env, HOLDFAST_UI_TOKEN: TOKEN };
  const child = spawn(process.execPath, [CLI, "ui", "--db", path, "--port", "0", "--json"], {
    env,
    stdio: ["pipe", "pipe", "inherit"],
  });
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  const { address, login } = JSON.parse((await lines.next()).value as string) as { address: string; login: string };
  return {
    address,
    login,
    async [Symbol.asyncDispose]() {
      child.kill("SIGTERM");
      await once(child, "exit");
    },
  };
}

async function logIn(browser: Browser, address: string): Promise<Page> {
  const context = await browser.newContext({ viewport: { width: 1_280, height: 900 } });
  const page = await context.newPage();
  await page.goto(address);
  await page.getByText("Live", { exact: true }).waitFor();
  return page;
}

/** Opens every page of the dashboard; answers the addresses of the API that it reads. */
async function visit(page: Page, address: string, { failed, succeeded, build }: Ids): Promise<string[]> {
  const paths = new Map<string, string>();
  page.on("request", (request) => {
    const { pathname, search } = new URL(request.url());
    if (request.resourceType() !== "fetch" || request.method() !== "GET") return;
    // A search continues over many pages that cost the same: the first and one more are enough.
    const path = `${pathname}${search}`;
    paths.set(path.replace(/limit=\d+&after=\d+/, "after"), path);
  });
  await page.reload();
  const pages = [
    "",
    "?range=7d",
    "jobs",
    "jobs?state=succeeded",
    "jobs?state=failed",
    "jobs?queue=mail",
    "jobs?name=resize",
    "jobs?key=absent",
    "jobs?tag=absent",
    "jobs?error=mailbox",
    `jobs/${failed}`,
    `jobs/${succeeded}`,
    `enqueue?from=${failed}`,
    "queues",
    "schedules",
    "builds",
    `builds/${build}?stage=fetch&target=target-7`,
    "recovery",
    "events",
    "audit",
  ];
  for (const one of pages) {
    await page.goto(`${address}#/${one}`);
    await page.waitForLoadState("networkidle", { timeout: 5_000 }).catch(() => {});
    await page.waitForTimeout(500);
  }
  return [...paths.values()].sort();
}

/** Sets `shownAt` when the counts of jobs are in the page. */
const OBSERVE = `
  new MutationObserver((_, observer) => {
    if (document.querySelector(".tiles .figure") === null) return;
    window.shownAt = performance.now();
    observer.disconnect();
  }).observe(document, { childList: true, subtree: true });`;

/** In a browser without a cache, from the start of the navigation. */
async function firstPaint(browser: Browser, page: Page, address: string): Promise<Figure[]> {
  const storageState = await page.context().storageState();
  const paints: number[] = [];
  const shown: number[] = [];
  for (let i = 0; i < PAINTS; i++) {
    const context = await browser.newContext({ viewport: { width: 1_280, height: 900 }, storageState });
    const fresh = await context.newPage();
    await fresh.addInitScript(OBSERVE);
    await fresh.goto(address);
    await fresh.locator(".tiles .figure").first().waitFor();
    shown.push(await fresh.evaluate<number>("shownAt"));
    paints.push(await fresh.evaluate<number>("performance.getEntriesByName('first-contentful-paint')[0].startTime"));
    await context.close();
  }
  return [
    figure("first paint of the dashboard, p50", median(paints), FIRST_PAINT_MS),
    figure("the overview's counts of jobs are shown, p50", median(shown), SHOWN_MS),
  ];
}

async function requests(address: string, paths: readonly string[]): Promise<Figure[]> {
  const figures: Figure[] = [];
  for (const path of paths) {
    const times: number[] = [];
    for (let i = 0; i < REQUESTS; i++) {
      const start = performance.now();
      const response = await fetch(new URL(path, address), { headers: { authorization: `Bearer ${TOKEN}` } });
      await response.arrayBuffer();
      times.push(performance.now() - start);
    }
    figures.push(figure(`${path.slice("/api/v1/".length)}, p95`, quantile(times, 0.95), PAGE_MS));
  }
  return figures;
}

function figure(what: string, ours: number, limit: number): Figure {
  return { what, ours, limit, unit: "ms", target: { atMost: 1 } };
}

/** Rounds with the overview open and without, in turn; the median over the pairs. */
async function slowdown(path: string, page: Page, address: string, rounds: number): Promise<Figure> {
  const child = fork(new URL("./dashboard-worker.ts", import.meta.url), [path]);
  await once(child, "message");
  const slower: number[] = [];
  for (let i = 0; i < WARM_ROUNDS; i++) await drained(child);
  for (let round = 0; round < rounds; round++) {
    const rates = { open: 0, closed: 0 };
    for (const one of round % 2 === 0 ? (["open", "closed"] as const) : (["closed", "open"] as const)) {
      await page.goto(one === "open" ? address : "about:blank");
      if (one === "open") await page.getByText("Live", { exact: true }).waitFor();
      rates[one] = await drained(child);
    }
    slower.push(1 - rates.open / rates.closed);
  }
  child.disconnect();
  await once(child, "exit");
  const ours = median(slower) * 100;
  return { what: "an open dashboard slows a draining worker", ours, limit: SLOWER_PERCENT, unit: "%", target: { atMost: 1 } };
}

async function drained(child: ChildProcess): Promise<number> {
  child.send(DRAINED_JOBS);
  const [measured] = (await once(child, "message")) as [number];
  return measured;
}
