/** Makes the pictures of the dashboard in docs/images/, of a made-up shop: `node scripts/screenshots.ts`. Needs chromium. */
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { countAttempt, noMinute, type QueueMinute } from "../src/core/jobs/minutes.ts";
import { type Holdfast, open } from "../src/index.ts";
import { serve } from "../src/server/serve.ts";
import { fillDemo, mail, resize } from "../test/server/demo.ts";
import { toPalettePng } from "./palette-png.ts";
import { buildUi } from "./ui.ts";

const IMAGES = join(import.meta.dirname, "../docs/images");
const WIDTH = 1_280;

await buildUi();
const folder = await mkdtemp(join(tmpdir(), "shop-"));
const hf = await open(join(folder, "shop.db"), { log: false, artifacts: join(folder, "artifacts") });
const { paused, running } = await fillDemo(hf);
await addHistory(hf);
await hf.enqueueMany(
  mail,
  Array.from({ length: 60 }, (_, i) => ({ to: `${i % 9 === 4 ? "slow" : `ann${i}`}@example.org`, template: "newsletter" })),
);
await hf.enqueueMany(
  resize,
  Array.from({ length: 8 }, (_, i) => ({ url: `photos/${i}.jpg`, width: 1_280 })),
);
const serving = await serve(hf, { authorize: () => ({ role: "approve", user: "ann" }) });
const args = ["--no-sandbox", "--disable-background-networking"];
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args });
for (const [name, path, colorScheme, height] of [
  ["overview", "", "light", 1_000],
  ["jobs", "#/jobs?state=failed", "dark", 760],
  ["build", `#/builds/${paused}`, "light", 820],
] as const) {
  const page = await browser.newPage({ viewport: { width: WIDTH, height }, colorScheme, reducedMotion: "reduce" });
  await page.goto(`${serving.address}${path}`);
  await page.getByText("Live", { exact: true }).waitFor();
  await page.locator(".panel, .rows").first().waitFor();
  await page.waitForLoadState("load");
  if (path === "") await page.locator(".sparkline").first().waitFor();
  // The canvas is drawn in the next frames.
  await page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))");
  await writeFile(join(IMAGES, `dashboard-${name}.png`), toPalettePng(await page.screenshot()));
  await page.close();
}
await browser.close();
await serving.close();
await hf.jobs.cancel(running);
await hf.close();
await rm(folder, { recursive: true });

/** An hour of work, as workers would have counted it. */
async function addHistory({ engine }: Holdfast): Promise<void> {
  const now = Math.floor(engine.clock.now() / 60_000);
  const minutes: QueueMinute[] = [];
  for (let i = 1; i <= 61; i++) {
    for (const [queue, rate, runMs] of [
      ["mail", 90, 180],
      ["images", 42, 900],
      ["sync", 6, 4_000],
    ] as const) {
      const counts = noMinute();
      const wave = 1 + 0.45 * Math.sin((i + rate) / 7) + 0.18 * Math.sin(i * 1.7 + rate);
      for (let n = 0; n < rate * wave; n++) {
        const end = (n * 7 + i) % 61 === 0 ? "failed" : (n * 5 + i) % 37 === 0 ? "retried" : "succeeded";
        countAttempt(counts, { end, waitMs: (n % 13) * 9 * wave, runMs: runMs * (0.4 + (n % 11) / 8) * wave });
      }
      minutes.push({ ...counts, queue, minute: now - i });
    }
  }
  await engine.store.queues.addMinutes(minutes, 0);
}
