import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { before, describe, test } from "node:test";
import { promisify } from "node:util";
import { inScratch } from "../../bench/scratch.ts";
import { page } from "./pages.ts";

interface Files {
  always: string[];
  ever: string[];
}

describe("docs/architecture.md", () => {
  const { text } = page("docs/architecture.md");
  let walk: { job: Files; build: Files };
  before(async () => {
    const program = new URL("./walk.ts", import.meta.url).pathname;
    walk = await inScratch(async (folder) => {
      // Without the option that makes children of tests run the bundle.
      const env = { ...process.env, NODE_OPTIONS: "" };
      const { stdout } = await promisify(execFile)(process.execPath, [program, folder], { env });
      return JSON.parse(stdout) as typeof walk;
    });
    assert.ok(walk.job.always.length > 0);
  });

  test("lists the files that a job passes through", () => {
    agrees(listed("job"), walk.job);
  });

  test("lists the files that a build passes through beyond those of a job", () => {
    const ofJobs = new Set(listed("job"));
    const beyond = (files: string[]) => files.filter((file) => !ofJobs.has(file));
    agrees(listed("build"), { always: beyond(walk.build.always), ever: beyond(walk.build.ever) });
  });

  test("has at most 2,500 words", () => {
    assert.ok(text.split(/\s+/).length <= 2_500);
  });

  function agrees(list: string[], { always, ever }: Files): void {
    assert.deepEqual(
      always.filter((file) => !list.includes(file)),
      [],
      "these run each time and are not listed",
    );
    assert.deepEqual(
      list.filter((file) => !ever.includes(file)),
      [],
      "these are listed and never run",
    );
  }

  /** The first word of each line of a list, which is a path below `src/`. */
  function listed(name: "job" | "build"): string[] {
    const [, list = ""] = text.split(new RegExp(`<!-- /?${name} -->`));
    return [...list.matchAll(/^([\w/-]+\.ts)/gm)].map(([, path]) => path as string);
  }
});
