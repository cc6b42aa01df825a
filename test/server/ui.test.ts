import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { gzipSync } from "node:zlib";
import { after, before, describe, test, type TestContext } from "node:test";
import { type Browser, chromium, type Page } from "playwright-core";
import { buildUi } from "../../scripts/ui.ts";
import { dashboardFiles } from "../../src/server/dashboard-files.ts";
import { DEMO_PIPELINES, fillDemo, mail } from "./demo.ts";
import { type Site, site } from "./parts.ts";

const CHROMIUM = "/usr/bin/chromium";
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const MAX_BYTES = 90_000;
const skip = existsSync(CHROMIUM) ? false : `No browser at ${CHROMIUM}: \`apt-get install chromium\` installs it.`;

const heading = (page: Page, name: string | RegExp) => page.getByRole("heading", { level: 1, name }).waitFor();

interface Opened {
  one: Site;
  page: Page;
  ids: Awaited<ReturnType<typeof fillDemo>>;
}

// The bundle of a whole run has the files in it; a file that is run alone reads them from the folder.
before(async () => {
  if (process.env["HOLDFAST_TEST_BUNDLE"] === undefined) await buildUi();
});

describe("the dashboard in a browser", { skip }, () => {
  let browser: Browser;
  before(async () => {
    const args = ["--no-sandbox", "--disable-background-networking"];
    browser = await chromium.launch({ executablePath: CHROMIUM, args });
  });
  after(() => browser?.close());

  /** A page of a filled database. It fails on an error in the console, and on a request to another host. */
  async function opened(t: TestContext, path = "", { expectsErrors = false, width = 1_280 } = {}): Promise<Opened> {
    const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme: "light" });
    const problems: string[] = [];
    // Before the server closes, which a page would notice.
    t.after(async () => {
      // A request that a test answers itself may be under way.
      for (const page of context.pages()) await page.unrouteAll({ behavior: "wait" });
      await context.close();
      await one.hf.jobs.cancel(ids.running);
      if (!expectsErrors) assert.deepEqual(problems, []);
    });
    const one = await site(t, "sqlite", { pipelines: DEMO_PIPELINES });
    const ids = await fillDemo(one.hf);
    const page = await context.newPage();
    page.on("console", (message) => {
      if (["error", "warning"].includes(message.type())) problems.push(message.text());
    });
    page.on("pageerror", (error) => problems.push(error.message));
    page.on("request", (request) => {
      if (!request.url().startsWith(one.address) && !request.url().startsWith("data:")) problems.push(request.url());
    });
    await page.goto(one.newLoginAddress() as string);
    if (path !== "") await page.goto(`${one.address}${path}`);
    await page.getByText("Live", { exact: true }).waitFor();
    return { one, page, ids };
  }

  test("every page opens, every number has a unit, and axe finds nothing in light and dark, wide and narrow", async (t) => {
    const { page, one, ids } = await opened(t);
    const pages: [path: string, name: string | RegExp][] = [
      ["#/", "Overview"],
      ["#/jobs", "Jobs"],
      [`#/jobs/${ids.failed}`, /^send-mail/],
      [`#/jobs/${ids.running}`, /^sync-crm/],
      [`#/jobs/${(await one.hf.jobs.list({ state: "waiting" })).items[0]?.id}`, /^monthly-report/],
      [`#/enqueue?from=${ids.failed}`, "Enqueue again"],
      ["#/queues", "Queues"],
      ["#/schedules", "Schedules"],
      ["#/builds", "Builds"],
      [`#/builds/${ids.paused}?stage=summarise&target=article-03`, /^summaries/],
      ["#/recovery", "Recovery"],
      ["#/events", "Events"],
      ["#/audit", "Audit"],
      ["#/nowhere", "There is no such page"],
    ];
    const found: string[] = [];
    await page.evaluate(AXE);
    for (const [path, name] of pages) {
      await page.goto(`${one.address}${path}`);
      await heading(page, name);
      await page.locator(".loading").first().waitFor({ state: "detached" });
      for (const number of await page.evaluate<string[]>(BARE_NUMBERS)) found.push(`${path} shows ${number} without a unit`);
      for (const [scheme, width] of [
        ["light", 1_280],
        ["dark", 360],
      ] as const) {
        await page.emulateMedia({ colorScheme: scheme, reducedMotion: "reduce" });
        await page.setViewportSize({ width, height: 900 });
        await page.locator(`html[data-theme="${scheme}"]`).waitFor();
        found.push(...(await violations(page)).map((one) => `${path} in ${scheme}: ${one}`));
        const isTooWide = await page.evaluate("document.documentElement.scrollWidth > innerWidth");
        if (isTooWide === true) found.push(`${path} is wider than ${width} px`);
      }
    }
    assert.deepEqual(found, []);
  });

  test("long names are cut, and the buttons beside them stay in view", async (t) => {
    const { page, one } = await opened(t);
    const name = "n".repeat(200);
    await one.call("jobs.enqueue", { body: { name: "long", queue: name, input: 1 } });
    await one.hf.schedule(mail, { key: name, cron: "15 10 L * *", input: { to: "a", template: "b" } });
    const beyond = `[...document.querySelectorAll("td button")].filter((one) => one.getBoundingClientRect().right > innerWidth).length`;
    for (const path of ["#/queues", "#/schedules"]) {
      await page.goto(`${one.address}${path}`);
      await page.getByTitle(name).waitFor();
      if (path === "#/schedules") await page.getByText("Last day of every month at 10:15").waitFor();
      for (const width of [1_360, 390]) {
        await page.setViewportSize({ width, height: 900 });
        assert.equal(await page.evaluate(beyond), 0, `${path} at ${width} px`);
      }
    }
  });

  test("large numbers stay inside their tiles", async (t) => {
    const { page } = await opened(t, "#/jobs");
    await page.route("**/api/v1/overview", async (route) => {
      const overview = (await (await route.fetch()).json()) as { counts: Record<string, number> };
      await route.fulfill({ json: { ...overview, counts: { ...overview.counts, succeeded: 12_345_678, failed: 99_999 } } });
    });
    await page.getByRole("link", { name: "Overview" }).click();
    await page.locator(".tile").getByTitle("12,345,678").waitFor();
    for (const width of [1_360, 390]) {
      await page.setViewportSize({ width, height: 900 });
      const overflowing = `[...document.querySelectorAll(".tile")].filter((one) => one.scrollWidth > one.clientWidth).length`;
      assert.equal(await page.evaluate(overflowing), 0);
    }
  });

  test("a percentile from a wide bucket is a bound", async (t) => {
    const { page } = await opened(t, "#/jobs");
    await page.route("**/api/v1/stats?*", async (route) => {
      const stats = (await (await route.fetch()).json()) as { items: object[] };
      const counts = { succeeded: 4, failed: 0, retried: 0, waitMs: 0, runMs: 0 };
      const [runs, waits] = [Array(12).fill(0).with(8, 4), Array(12).fill(0).with(11, 4)];
      const minute = Math.floor(Date.now() / 60_000);
      const items = Array.from({ length: 3 }, (_, i) => ({ queue: "mail", minute: minute - i, ...counts, runs, waits }));
      await route.fulfill({ json: { ...stats, items } });
    });
    await page.getByRole("link", { name: "Overview" }).click();
    await page.getByText("run time p95 ≤ 5 min").waitFor();
    await page.getByText("wait time p95 > 2 h").waitFor();
  });

  test("a filter changes the address and the list, and the address brings it back", async (t) => {
    const { page, one } = await opened(t, "#/jobs");
    await page.getByLabel("State", { exact: true }).selectOption("failed");
    await page.waitForURL(/#\/jobs\?state=failed$/);
    await page.getByText("3 jobs", { exact: true }).waitFor();
    await page.getByLabel("Queue", { exact: true }).selectOption("mail");
    await page.getByText("2 jobs", { exact: true }).waitFor();
    await page.getByLabel("Name").fill("absent");
    await page.getByText("No job matches these filters").waitFor();
    await page.locator('input[aria-label="Name"]:focus').waitFor();
    await page.getByRole("link", { name: "Clear" }).click();
    await page.locator('input[aria-label="Name"]:placeholder-shown').waitFor();
    await page.goto(`${one.address}#/jobs?queue=images`);
    await page.getByText("25 jobs", { exact: true }).waitFor();
    assert.equal(await page.getByLabel("Queue", { exact: true }).inputValue(), "images");
  });

  test("a job with an unusual id has its page, with a command that works, and can be cancelled there", async (t) => {
    const { page, one } = await opened(t);
    for (const [id, words] of [
      ["counts", "counts"],
      ["..", ".."],
      ["-rf", "-- -rf"],
    ] as const) {
      await one.call("jobs.enqueue", { body: { name: "odd", id, queue: "later", input: 1 } });
      await page.goto(`${one.address}#/jobs/${id}`);
      await heading(page, /^odd/);
      await page.getByText(`holdfast jobs show ${words}`, { exact: true }).waitFor();
      await page.getByRole("button", { name: "Cancel" }).click();
      await page.getByRole("dialog").getByRole("button", { name: "Cancel the job" }).click();
      await page.getByText("The job is cancelled.").waitFor();
      assert.equal((await one.hf.jobs.get(id))?.state, "cancelled");
      await page.reload();
    }
  });

  test("a job shows its tags, and each leads to the jobs that have it", async (t) => {
    const { page, one } = await opened(t);
    await one.call("jobs.enqueue", {
      body: { name: "tagged", id: "tagged", queue: "later", input: { user: 7 }, tags: ["vip", "eu"] },
    });
    await page.goto(`${one.address}#/jobs?queue=later`);
    await page.getByRole("row", { name: "tagged vip eu" }).getByRole("link").click();
    await page.getByRole("link", { name: "vip" }).click();
    await page.getByText("holdfast jobs list --tag vip").waitFor();
    await page.getByText(/^1 job · not live/).waitFor();
  });

  test("jobs are found by their input and times, and cancelled by them", async (t) => {
    const { page, one, ids } = await opened(t, "#/jobs");
    const before = (await one.hf.jobs.get(ids.failed))?.createdAt as number;
    await one.call("jobs.enqueue", { body: { name: "found", id: "found", queue: "later", input: { user: { id: 7 } } } });
    await page.getByLabel("Input a.b=7").fill("user.id");
    await page.locator("input:invalid").waitFor();
    await page.getByLabel("Input a.b=7").fill("user.id=7");
    await page.getByRole("link", { name: "found" }).waitFor();
    await page.getByText(/^1 job · not live/).waitFor();
    await page.getByText("Times", { exact: true }).click();
    await page.getByLabel("Created before").fill("2020-01-31T12:00");
    await page.getByText("No job matches these filters").waitFor();
    await page.getByText("holdfast jobs list --input user.id=7 --created-before 2020-01-31T").waitFor();
    await page.goto(`${one.address}#/jobs?input=user.id%3D7&createdAfter=${before}&createdBefore=never`);
    await page.getByRole("link", { name: "found" }).waitFor();
    await page.getByRole("button", { name: "Cancel all" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Cancel 1 job" }).click();
    await page.getByText("1 job is cancelled.").waitFor();
    assert.equal((await one.hf.jobs.get("found"))?.state, "cancelled");
  });

  test("a failed job is retried after a confirmation that shows the command", async (t) => {
    const { page, one, ids } = await opened(t);
    await page.goto(`${one.address}#/jobs/${ids.failed}`);
    await page.getByRole("button", { name: "Retry", exact: true }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByText(`holdfast jobs retry ${ids.failed}`).waitFor();
    const ended = one.hf.jobs.get(ids.failed);
    await dialog.getByRole("button", { name: "Retry" }).click();
    await page.getByText("The job is pending again.").waitFor();
    const first = (await ended)?.finishedAt as number;
    const again = await one.hf.jobs.wait(ids.failed);
    assert.ok((again.finishedAt as number) > first);
  });

  test("a job is enqueued again with edited input; a number that would change is refused", async (t) => {
    const { page, one, ids } = await opened(t);
    await page.goto(`${one.address}#/jobs/${ids.failed}`);
    await page.getByRole("link", { name: "Enqueue again" }).click();
    const input = page.getByLabel("Input, as JSON");
    await input.fill('{"to":"ann@example.org","template":"again","n":12345678901234567890}');
    await page.getByText("12345678901234567890 would become").waitFor();
    assert.ok(await page.getByRole("button", { name: "Enqueue" }).isDisabled());
    await input.fill('{"to":"ann@example.org","template":"again"}');
    await page.getByRole("button", { name: "Enqueue" }).click();
    await heading(page, /^send-mail/);
    const id = decodeURIComponent(new URL(page.url()).hash.split("/").at(-1) as string);
    assert.deepEqual((await one.hf.jobs.wait(id)).output, { messageId: "<again.ann@example.org>" });
    await page.getByText('"<again.ann@example.org>"').waitFor();
  });

  test("a long input is shown in part, then whole, and enqueued again as it is", async (t) => {
    const { page, one } = await opened(t);
    const input = { text: "x".repeat(150_000), rows: Array.from({ length: 20_000 }, (_, i) => `row ${i}`) };
    await one.call("jobs.enqueue", { body: { name: "long", id: "long", input } });
    await page.goto(`${one.address}#/jobs/long`);
    await page.getByText(/^The first 100,000 of [\d,]+ characters/).waitFor();
    const json = page.getByLabel("the input", { exact: true });
    assert.equal((await json.textContent())?.length, 100_000);
    await page.getByRole("button", { name: "Show all of the input" }).click();
    await json.getByText('"row 19999"').waitFor();
    assert.equal(await json.textContent(), JSON.stringify(input, null, 2));
    await page.getByRole("link", { name: "Enqueue again" }).click();
    await page.getByText(/characters, too many to edit here/).waitFor();
    await page.getByText("holdfast enqueue long - --queue long < input.json").waitFor();
    await page.locator("[name=id]").fill("again");
    await page.getByRole("button", { name: "Enqueue", exact: true }).click();
    await heading(page, /^long/);
    assert.deepEqual((await one.hf.jobs.get("again"))?.input, input);
    await page.goto(`${one.address}#/enqueue?from=long`);
    await page.getByRole("button", { name: "Replace it" }).click();
    assert.equal(await page.getByLabel("Input, as JSON").inputValue(), "{}");
  });

  test("jobs are found by their error, counted, and retried together", async (t) => {
    const { page, one, ids } = await opened(t, "#/jobs?state=failed");
    await page.getByText("3 jobs", { exact: true }).waitFor();
    await page.getByLabel("Error", { exact: true }).fill("MAILBOX");
    await page.getByText(/^1 job · not live/).waitFor();
    await page.getByRole("button", { name: "Retry all" }).click();
    const dialog = page.getByRole("dialog", { name: "Retry 1 job?" });
    await dialog.getByText("holdfast jobs retry --state failed --error MAILBOX --yes").waitFor();
    const first = (await one.hf.jobs.get(ids.failed))?.finishedAt as number;
    await dialog.getByRole("button", { name: "Retry 1 job" }).click();
    await page.getByText("1 job is pending again.").waitFor();
    assert.ok(((await one.hf.jobs.wait(ids.failed)).finishedAt as number) > first);
    await page.goto(`${one.address}#/jobs/${ids.failed}`);
    await page.getByRole("region", { name: "Attempts" }).getByText("550 mailbox").first().waitFor();
    await page.getByText(/^2 attempts over /).waitFor();
  });

  test("a job that waits says why", async (t) => {
    const { page, one, ids } = await opened(t);
    const { items } = await one.hf.jobs.list({ state: "waiting" });
    await page.goto(`${one.address}#/jobs/${items[0]?.id}`);
    const why = page.getByRole("region", { name: "Why it is not running" });
    await why.getByRole("link", { name: ids.running }).waitFor();
    await why.getByText(`holdfast jobs why ${items[0]?.id}`).waitFor();
  });

  test("a queue is paused and resumed, a schedule runs now", async (t) => {
    const { page, one } = await opened(t, "#/queues");
    await page.getByRole("region", { name: "Limits" }).getByText("1 of 2 jobs").waitFor();
    await page.getByRole("button", { name: "Pause mail" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Pause the queue" }).click();
    await page.getByRole("button", { name: "Resume mail" }).click();
    assert.equal((await one.hf.queues.list()).find(({ name }) => name === "mail")?.paused, true);
    await page.getByRole("dialog").getByRole("button", { name: "Resume the queue" }).click();
    await page.getByRole("button", { name: "Pause mail" }).waitFor();
    await page.goto(`${one.address}#/schedules`);
    await page.getByText("Day 1 of every month at 06:00").waitFor();
    await page.getByRole("button", { name: "Run now monthly-report" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Run now" }).click();
    const said = await page.getByText(/^Job \S+ is enqueued\.$/).textContent();
    const job = await one.hf.jobs.wait(/^Job (\S+)/.exec(said as string)?.[1] as string);
    assert.deepEqual(job.input, { month: "last" });
  });

  test("the next build is planned beside what the last one did", async (t) => {
    const { page, one, ids } = await opened(t);
    await page.goto(`${one.address}#/builds/${ids.paused}`);
    await page.getByRole("button", { name: "Plan the next build" }).click();
    await page.getByRole("row", { name: /^summarise \d+ work items \d+ work items \d+ work items .*at most \$/ }).waitFor();
    assert.equal((await one.hf.builds.list()).items.length, 2, "a plan is no build");
  });

  test("a paused build is explained, approved with a new budget, and refused", async (t) => {
    const { page, one, ids } = await opened(t);
    await page.goto(`${one.address}#/builds/${ids.paused}?stage=summarise&target=article-03`);
    await page.getByText("Ran: this target had no result before.").waitFor();
    await page.getByText('"What article-03 says"').waitFor();
    await page.getByRole("link", { name: "article-02: translate ran $0.02" }).click();
    await page.getByText('"language": "de"').waitFor();
    const spend = page.locator("section.panel", { has: page.getByRole("heading", { name: "Burn-down" }) });
    await spend.getByRole("img", { name: "Spend over time in dollars, against the budget" }).waitFor();
    await spend.getByText(/^spent \$1\.\d\d$/).waitFor();
    await spend.getByText("budget $2.00").waitFor();
    const download = page.waitForEvent("download");
    await page.getByRole("link", { name: "Export" }).click();
    assert.equal((await download).suggestedFilename(), `${ids.paused}.tar`);
    await page.getByRole("button", { name: "Approve more" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Dollars in all").fill("3.5");
    await dialog.getByText(`holdfast builds approve ${ids.paused} --token - --budget usd=3.5`).waitFor();
    await dialog.getByRole("button", { name: "Approve" }).click();
    await page.getByText("Approved: $3.50 in all.").waitFor();
    assert.deepEqual((await one.hf.builds.get(ids.paused))?.budget, { usd: 3.5 });
    await spend.getByText("budget $3.50").waitFor();
    await page.getByRole("button", { name: "Refuse" }).click();
    await dialog.getByLabel("Reason").fill("too expensive");
    await dialog.getByRole("button", { name: "Refuse" }).click();
    await page.getByText("Refused. The build has failed.").waitFor();
    assert.equal((await one.hf.builds.get(ids.paused))?.state, "FAILED");
  });

  test("events arrive as they are committed, and the audit is verified", async (t) => {
    const { page, one } = await opened(t, "#/events?types=queue.*");
    await page.getByText("1 event, the newest first").waitFor();
    await one.hf.queues.resume("billing");
    await page.getByText("2 events, the newest first").waitFor();
    await page.getByText("queue.resumed").waitFor();
    await page.goto(`${one.address}#/audit?subject=queue%3Abilling`);
    await page.getByText("2 entries", { exact: true }).waitFor();
    await page.getByText("true → false").waitFor();
    await page.getByRole("button", { name: "Verify the chain" }).click();
    await page.getByText(/^Verified: \d+ entries\.$/).waitFor();
  });

  test("a backup is made, and the doctor's finding goes", async (t) => {
    const { page } = await opened(t, "#/recovery");
    await page.getByText(/There is no backup in/).waitFor();
    assert.equal(await page.getByRole("button", { name: "Acknowledge reports" }).count(), 0);
    await page.getByRole("button", { name: "Back up now" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Back up" }).click();
    await page.getByText(/^The backup is at /).waitFor();
    await page.reload();
    await page.getByText("Nothing found").waitFor();
  });

  test("reports are acknowledged while some are open", async (t) => {
    const { page } = await opened(t, "#/jobs");
    const failed = { code: "RECOVERY_FAILED", grave: true, message: "a recovery failed", hint: "holdfast recover --last" };
    await page.route("**/api/v1/overview", async (route) => {
      const overview = (await (await route.fetch()).json()) as object;
      await route.fulfill({ json: { ...overview, alarms: [failed] } });
    });
    await page.getByRole("link", { name: "Recovery" }).click();
    await page.getByRole("button", { name: "Acknowledge reports" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Acknowledge" }).click();
    await page.getByText("0 reports acknowledged.").waitFor();
  });

  test("a new job appears without a reload, and a script in its input stays text", async (t) => {
    const { page, one } = await opened(t, "#/jobs?queue=attack");
    await page.getByText("No job matches these filters").waitFor();
    const script = "<img src=x onerror='document.title=1'><script>document.title = 'taken over'</script>";
    const { id } = await one.call<{ id: string }>("jobs.enqueue", {
      body: { name: "<b>bold</b>", queue: "attack", input: { script }, key: script },
    });
    await page.getByRole("link", { name: "<b>bold</b>" }).click();
    await heading(page, /^<b>bold<\/b>/);
    assert.ok((await page.locator("pre").first().innerText()).includes(JSON.stringify(script)));
    assert.equal(await page.locator("main img, main script, main b").count(), 0);
    assert.equal(await page.title(), `${id} · Holdfast`);
  });

  test("a hidden page reads nothing, and shows what came meanwhile when it is seen again", async (t) => {
    const { page, one } = await opened(t, "#/jobs?queue=later");
    await page.getByText("No job matches these filters").waitFor();
    await page.clock.install();
    await page.reload();
    await page.getByText("No job matches these filters").waitFor();
    const setHidden = (isHidden: boolean) =>
      page.evaluate(`
        Object.defineProperty(document, "hidden", { configurable: true, value: ${isHidden} });
        document.dispatchEvent(new Event("visibilitychange"));`);
    await setHidden(true);
    await page.waitForLoadState("networkidle");
    const read: string[] = [];
    page.on("request", (request) => read.push(request.url()));
    await one.call("jobs.enqueue", { body: { name: "absent", queue: "later", input: 1 } });
    await page.clock.runFor(60_000);
    assert.deepEqual(read, []);
    await setHidden(false);
    await page.getByRole("link", { name: "absent" }).waitFor();
  });

  test("the navigation of a narrow screen shows where the page is", async (t) => {
    const { page, one } = await opened(t, "", { width: 390 });
    for (const name of ["Audit", "Overview"]) {
      await page.goto(`${one.address}#/${name === "Overview" ? "" : name.toLowerCase()}`);
      await heading(page, name);
      const { x = -1, width = 0 } = (await page.getByRole("link", { name, exact: true }).boundingBox()) ?? {};
      assert.ok(x >= 0 && x + width <= 390, `${name} is at ${x} px`);
    }
  });

  test("colours are chosen and remembered", async (t) => {
    const { page } = await opened(t);
    const background = () => page.evaluate("getComputedStyle(document.body).backgroundColor");
    const light = await background();
    await page.getByRole("button", { name: "Colours: dark" }).click();
    const dark = await background();
    assert.notEqual(dark, light);
    await page.reload();
    await heading(page, "Overview");
    assert.equal(await background(), dark);
  });

  test("the keyboard is enough: to the jobs, along the rows, into one, and back", async (t) => {
    const { page } = await opened(t);
    await heading(page, "Overview");
    await page.keyboard.press("?");
    await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await page.keyboard.press("g");
    await page.keyboard.press("j");
    await heading(page, "Jobs");
    await page.locator("a.row-link").first().waitFor();
    await page.keyboard.press("j");
    await page.keyboard.press("j");
    await page.locator('.row[aria-rowindex="3"] a.row-link:focus').waitFor();
    await page.keyboard.press("Enter");
    await page.locator("h1 .badge").waitFor();
    assert.equal(await page.evaluate("document.activeElement.tagName"), "H1");
    await page.keyboard.press("g");
    await page.keyboard.press("o");
    await heading(page, "Overview");
  });

  test("thousands of rows are scrolled through with few of them in the page", async (t) => {
    const { page, one } = await opened(t);
    await one.hf.queues.pause("bulk");
    const bulk = { ...mail, queue: "bulk" };
    await one.hf.enqueueMany(
      bulk,
      Array.from({ length: 1_200 }, (_, i) => ({ to: `u${i}`, template: "x" })),
    );
    await page.goto(`${one.address}#/jobs?queue=bulk`);
    const rows = page.locator(".rows-scroll");
    await rows.waitFor();
    for (const read of ["100", "200", "300", "400", "500", "600", "700", "800", "900", "1,000", "1,100", "1,200"]) {
      await page.locator(".rows-foot", { hasText: `${read} jobs` }).waitFor();
      await rows.evaluate((element: { scrollTo: (x: number, y: number) => void }) => element.scrollTo(0, 1e6));
    }
    assert.ok((await page.locator(".rows-space .row").count()) < 60);
  });

  test("a page whose server is gone says that it is disconnected", async (t) => {
    const { page, one } = await opened(t, "", { expectsErrors: true });
    await heading(page, "Overview");
    await one.close();
    await page.getByText("Disconnected", { exact: true }).waitFor();
    await page.getByText(/This is what the server said/).waitFor();
  });

  test("a user who may only read sees no actions", async (t) => {
    const page = await browser.newPage();
    t.after(async () => {
      await page.close();
      await one.hf.jobs.cancel(running);
    });
    const one = await site(t, "sqlite", { authorize: () => ({ role: "read", user: "ann" }) });
    const { failed, running } = await fillDemo(one.hf);
    await page.goto(`${one.address}#/jobs/${failed}`);
    await heading(page, /^send-mail/);
    await page.getByText("Live", { exact: true }).waitFor();
    assert.equal(await page.getByRole("button", { name: "Retry" }).count(), 0);
    assert.equal(await page.getByRole("link", { name: "Enqueue again" }).count(), 0);
  });
});

test("the dashboard's files have at most 90 kB together, compressed", () => {
  const files = Object.entries(dashboardFiles());
  assert.deepEqual(files.map(([name]) => name).sort(), ["app.css", "app.js", "index.html"]);
  const bytes = files.reduce((sum, [, file]) => sum + gzipSync(file).length, 0);
  assert.ok(bytes <= MAX_BYTES, `${bytes} bytes`);
});

/** Numbers with no word or sign beside them in their cell or line. A term (`dt`) names the unit of its value. */
const BARE_NUMBERS = `[...document.body.querySelectorAll("*")]
  .filter((one) => one.children.length === 0 && /^\\d+([.,]\\d+)*$/.test(one.textContent.trim()))
  .filter((one) => one.closest("pre, code, textarea, select, svg, dd") === null)
  .filter((one) => !/[\\p{L}%$×#]/u.test((one.closest("td") ?? one.parentElement).textContent))
  .map((one) => one.outerHTML)`;

interface Found {
  violations: { id: string; nodes: { html: string }[] }[];
}

async function violations(page: Page): Promise<string[]> {
  const { violations: found } = await page.evaluate<Found>("axe.run(document, { resultTypes: ['violations'] })");
  return found.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 200)).join(" | ")}`);
}
