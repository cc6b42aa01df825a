import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { chmod, mkdir, rm, writeFile } from "node:fs/promises";
import { readFileSync, writeFileSync } from "node:fs";
import { delimiter, join } from "node:path";
import { describe, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { job, open } from "../../src/index.ts";
import { ALARM_CODES } from "../../src/operator/overview.ts";
import { Place } from "../cli/holdfast.ts";
import { firstOf } from "../selection.ts";
import { offsetOf, PAGE, rootOf, scribble } from "../damage/place.ts";
import { page, ROOT } from "../docs/pages.ts";
import { programOf } from "./place.ts";

/*
 * Every command of docs/operations.md, section by section: in a shell, in this order, on a database that is as the section
 * says. `# exits 5` behind a command is what it exits with, else 0. One that ends in `&` runs beside those that follow.
 */
const { text } = page("docs/operations.md");
const BIN = fileURLToPath(new URL("../../bin/holdfast.js", import.meta.url));
const order = job<{ item: number }>({ name: "order", run: () => {} });
const JOBS = `import { job } from ${JSON.stringify(pathToFileURL(join(ROOT, "src/index.ts")).href)};
export default job({ name: "order", run: ({ input }) => ({ sold: input.item }) });
`;

interface Step {
  command: string;
  code: number;
  background: boolean;
}

/** How a database comes into the state that a section is for, and what is to be there at its end. */
interface Scene {
  /** What is in the environment then. */
  before: (place: Place) => Promise<Record<string, string> | void>;
  after: (place: Place, said: string) => Promise<void>;
}

const SCENES: Record<string, Scene> = {
  "Before something risky": { before: fill, after: (place) => succeeded(place, 20) },
  "A worker was killed": {
    before: (place) => killed(place),
    after: async (place, said) => {
      assert.match(said, /1 of 1 reclaimed: 1 pending again/);
      await succeeded(place, 3);
    },
  },
  "Jobs are quarantined": {
    before: (place) => killed(place, "1"),
    after: (place) => counted(place, { pending: 3, quarantined: 0 }),
  },
  "Recovery waits for approval": {
    before: async (place) => {
      await killed(place);
      await writeFile(join(place.folder, "holdfast.config.ts"), 'export default { modules: [], recovery: "manual" };\n');
    },
    after: async (place, said) => {
      assert.match(said, /a crash left something to recover, which waits for your approval: 1 job/);
      assert.match(said, /This would be done/);
      await counted(place, { pending: 3, running: 0 });
    },
  },
  "Something is missing after a crash": {
    before: async (place) => {
      await fill(place);
      await killed(place);
      await rm(`${place.db}-wal`);
    },
    after: async (place, said) => {
      assert.match(said, /commits?, with 3 jobs, were acknowledged and are gone/);
      await counted(place, { pending: 20 });
    },
  },
  "The database is damaged": {
    before: async (place) => {
      await fill(place);
      await backedUp(place);
      await fill(place);
      scribble(place.db, offsetOf(rootOf(place.db, "holdfast_jobs")) + 8, Buffer.alloc(PAGE - 8, 0xab));
    },
    after: async (place, said) => {
      assert.match(said, /The database is damaged, and so is this copy/);
      assert.match(said, /Salvaged: .*\nFrom the backup .*: 20 rows, 20 jobs among them/);
      await using hf = await open(place.db);
      assert.equal((await hf.check()).ok, true);
    },
  },
  "Back to a backup": {
    before: async (place) => {
      await fill(place);
      await backedUp(place);
      await fill(place);
    },
    after: async (place, said) => {
      assert.match(said, /work\.db\.replaced-/);
      await counted(place, { pending: 40 });
    },
  },
  "To an instant": {
    before: async (place) => {
      const hf = await open(place.db, { journal: true });
      await fill(place);
      await backedUp(place);
      await fill(place);
      const instant = Date.now();
      while (Date.now() === instant);
      await fill(place);
      await hf.close();
      return { INSTANT: new Date(instant).toISOString() };
    },
    after: (place) => counted(place, { pending: 40 }),
  },
  "The host is gone": {
    before: async (place) => {
      await fill(place);
      await backedUp(place);
      for (const suffix of ["", "-wal", "-shm", "-alive", "-witness"]) {
        await rm(place.db + suffix, { recursive: true, force: true });
      }
    },
    after: (place) => succeeded(place, 20),
  },
};

test("the page has steps for each state, and nothing else", () => {
  assert.deepEqual([...sections().keys()], Object.keys(SCENES));
  const all = [...sections().values()].flat();
  assert.ok(all.length > 40, `${all.length} commands`);
  assert.ok(all.every(({ command }) => command.startsWith("holdfast ")));
});

describe("on a bad day", { concurrency: 2 }, () => {
  for (const [turn, [title, steps]] of [...sections()].entries()) {
    test(`${title}: each step does what the page says`, firstOf(2, turn), async (t) => {
      const place = await Place.make();
      t.after(() => place.remove());
      const scene = SCENES[title];
      assert.ok(scene !== undefined, title);
      await writeFile(join(place.folder, "jobs.ts"), JOBS);
      await mkdir(join(place.folder, "mnt"));
      const env = (await scene.before(place)) ?? {};
      await scene.after(place, await follow(place, steps, env));
    });
  }
});

test("every alarm of status and health is on the page, and every area of doctor on the doctor's page", () => {
  assert.deepEqual(rowsOf("## Alarms", /^\| `([A-Z_]+)` \|/gm).toSorted(), ALARM_CODES.toSorted());
  const areas = literalsIn("src/core/recovery/diagnosis.ts", /type Area =((?:\s*\| "[a-z]+")+)/);
  assert.ok(areas.length > 10, areas.join());
  const listed = [...page("docs/doctor.md").text.matchAll(/^\| `([a-z]+)` \|/gm)].map(([, area]) => area as string);
  assert.deepEqual(listed.toSorted(), areas.toSorted());
});

function sections(): Map<string, Step[]> {
  const [, all = ""] = /^## Step by step$([\s\S]*?)^## /m.exec(text) ?? [];
  return new Map(
    all
      .split(/^### /m)
      .slice(1)
      .map((section) => [section.split("\n")[0] as string, [...section.matchAll(/^```sh\n([\s\S]*?)^```$/gm)].flatMap(stepsOf)]),
  );
}

function stepsOf([, block = ""]: RegExpExecArray | RegExpMatchArray): Step[] {
  return block
    .trimEnd()
    .split("\n")
    .map((line) => {
      const [command = "", comment = ""] = line.split(/\s+# /);
      const background = command.endsWith(" &");
      return {
        command: background ? command.slice(0, -2) : command,
        code: Number(/^exits (\d+)/.exec(comment)?.[1] ?? 0),
        background,
      };
    });
}

function rowsOf(heading: string, row: RegExp): string[] {
  const section = text.split(heading)[1]?.split(/^## /m)[0] ?? "";
  return [...section.matchAll(row)].map(([, name]) => name as string);
}

function literalsIn(file: string, union: RegExp): string[] {
  const found = union.exec(readFileSync(join(ROOT, file), "utf8"))?.[1] ?? "";
  return [...found.matchAll(/"(\w+)"/g)].map(([, name]) => name as string);
}

/** All that they have said. */
async function follow(place: Place, steps: Step[], more: Record<string, string>): Promise<string> {
  const bin = join(place.folder, "bin");
  await mkdir(bin);
  writeFileSync(join(bin, "holdfast"), `#!/bin/sh\nexec '${process.execPath}' '${BIN}' "$@"\n`);
  await chmod(join(bin, "holdfast"), 0o755);
  const env = {
    PATH: bin + delimiter + process.env["PATH"],
    HOLDFAST_DB: "work.db",
    NODE_COMPILE_CACHE: place.cache,
    NO_COLOR: "1",
    ...more,
  };
  let all = "";
  for (const { command, code, background } of steps) {
    const text = command.replaceAll("/mnt/backups", join(place.folder, "mnt"));
    if (background) {
      const worker = place.start(text.split(" ").slice(1), { env });
      await worker.said("Working on");
      continue;
    }
    const said = await shell(text, place.folder, env);
    assert.equal(said.code, code, `${command}\n${said.output}`);
    all += said.output;
  }
  return all;
}

function shell(command: string, cwd: string, env: NodeJS.ProcessEnv): Promise<{ code: number | null; output: string }> {
  return new Promise((resolve) => {
    const child = spawn("sh", ["-c", command], { cwd, env: { ...process.env, ...env } });
    let output = "";
    child.stdout.setEncoding("utf8").on("data", (text: string) => (output += text));
    child.stderr.setEncoding("utf8").on("data", (text: string) => (output += text));
    child.on("close", (code) => resolve({ code, output }));
  });
}

async function fill({ db }: Place): Promise<void> {
  await using hf = await open(db);
  await hf.enqueueMany(
    order,
    Array.from({ length: 20 }, (_, item) => ({ item })),
  );
}

async function backedUp(place: Place): Promise<void> {
  await using hf = await open(place.db);
  await hf.backup(join(place.folder, "mnt", "monday.db"));
}

async function killed({ db }: Place, crashes = "3"): Promise<void> {
  const { NODE_TEST_CONTEXT: _, ...env } = process.env;
  const victim = spawn(process.execPath, [programOf("victim"), db, crashes], { stdio: "inherit", env });
  const [, signal] = await once(victim, "exit");
  assert.equal(signal, "SIGKILL");
}

async function counted({ db }: Place, expected: Partial<Record<string, number>>): Promise<void> {
  await using hf = await open(db);
  assert.partialDeepStrictEqual(await hf.jobs.counts(), expected);
}

async function succeeded(place: Place, many: number): Promise<void> {
  await counted(place, { succeeded: many, pending: 0, running: 0 });
}
