import { type Holdfast, items, job, NonRetryableError, pipeline } from "../../src/index.ts";

class TimeoutError extends Error {
  override name = "TimeoutError";
  readonly code = "ETIMEDOUT";
}

/** What jobs of a shop look like, some of which fail. */
export const mail = job<{ to: string; template: string }, { messageId: string }>({
  name: "send-mail",
  queue: "mail",
  retry: { attempts: 1 },
  run: async ({ input }) => {
    if (input.to.startsWith("bounce")) throw new NonRetryableError(`550 mailbox ${input.to} is not available`);
    if (input.to.startsWith("slow")) throw new TimeoutError("the mail server did not answer within 10 s");
    return { messageId: `<${input.template}.${input.to}>` };
  },
});
export const resize = job<{ url: string; width: number }, { file: string; bytes: number }>({
  name: "resize-image",
  queue: "images",
  run: ({ input }) => ({ file: `${input.url}.${input.width}.webp`, bytes: 48_213 }),
});
export const invoice = job<{ order: number }, null>({ name: "invoice", queue: "billing", run: () => null });
/** Runs until its signal aborts. */
export const sync = job<{ account: string }>({
  name: "sync-crm",
  queue: "sync",
  limit: { concurrency: 2, key: ({ account }) => account },
  run: async ({ signal, progress }) => {
    progress(0.42, "1,260 of 3,000 contacts");
    await new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
    signal.throwIfAborted();
  },
});
const report = job<{ month: string }>({ name: "monthly-report", run: () => undefined });

const articles = Array.from({ length: 24 }, (_, i) => `article-${String(i + 1).padStart(2, "0")}`);
const summaries = pipeline("summaries", { budget: { usd: 2 } })
  .source(items(() => articles, { id: (one) => one }))
  .stage("fetch", { version: 1 }, ({ target }) => ({ text: `Text of ${target.id}` }))
  .stage("summarise", { version: 1, estimate: { usd: 0.12 } }, ({ target, cost }) => {
    if (target.id === "article-07") throw new NonRetryableError("the model refused: the article is empty");
    cost({ usd: 0.11, tokens: 1_840 });
    return { summary: `What ${target.id} says` };
  })
  .stage("translate", { version: 1, estimate: { usd: 0.03 } }, ({ cost }) => {
    cost({ usd: 0.02, tokens: 610 });
    return { language: "de" };
  });
const thumbnails = pipeline("thumbnails")
  .source(items(() => articles.slice(0, 8), { id: (one) => one }))
  .stage("render", { version: 3 }, ({ target }) => ({ image: `${target.id}.png` }));

export const DEMO_PIPELINES = [summaries, thumbnails];
export const DEMO_JOBS = [mail, resize, sync, report];

/** Fills a database with something of everything that the dashboard shows. Returns when nothing moves any more. */
export async function fillDemo(hf: Holdfast): Promise<{ failed: string; running: string; paused: string }> {
  const sent = await hf.enqueueMany(mail, [
    ...Array.from({ length: 40 }, (_, i) => ({ to: `user${i}@example.org`, template: "welcome" })),
    { to: "slow@example.net", template: "receipt" },
    { to: "bounce@example.com", template: "welcome" },
  ]);
  await hf.enqueueMany(
    resize,
    Array.from({ length: 25 }, (_, i) => ({ url: `photos/${i}.jpg`, width: 640 })),
  );
  const running = await hf.enqueue(sync, { account: "acme" }, { key: "acme" });
  await hf.queues.pause("billing");
  for (let order = 1_001; order <= 1_018; order++) await hf.enqueue(invoice, { order });
  await hf.enqueue(report, { month: "2026-10" }, { delay: "2h" });
  await hf.enqueue(report, { month: "2026-11" }, { after: [running.id] });
  await hf.schedule(report, { key: "monthly-report", cron: "0 6 1 * *", timezone: "Europe/Berlin", input: { month: "last" } });
  await hf.schedule(mail, { key: "digest", cron: "*/15 * * * *", input: { to: "team@example.org", template: "digest" } });
  await hf.schedules.pause("digest");
  hf.work(DEMO_JOBS, { concurrency: 4 });
  const last = sent.at(-1)?.id as string;
  await Promise.all(sent.map(({ id }) => hf.jobs.wait(id)));
  await (await hf.builds.start(thumbnails)).done();
  const { id: paused } = await (await hf.builds.start(summaries)).done();
  return { failed: last, running: running.id, paused };
}
