import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { before, describe, test } from "node:test";
import { promisify } from "node:util";
import { inScratch } from "../../bench/scratch.ts";
import { page } from "./pages.ts";

interface Walk {
  job: string[];
  build: string[];
}

describe("docs/architecture.md", () => {
  const { text } = page("docs/architecture.md");
  let walk: Walk;
  before(async () => {
    const program = new URL("./walk.ts", import.meta.url).pathname;
    walk = await inScratch(async (folder) => {
      // Without the option that makes children of tests run the bundle.
      const env = { ...process.env, NODE_OPTIONS: "" };
      const { stdout } = await promisify(execFile)(process.execPath, [program, folder], { env });
      return JSON.parse(stdout) as Walk;
    });
    assert.ok(walk.job.length > 0);
  });

  test("lists the files that a job passes through", () => {
    assert.deepEqual(listed("job").toSorted(), walk.job);
  });

  test("lists the files that a build passes through beyond those of a job", () => {
    const beyond = walk.build.filter((file) => !walk.job.includes(file));
    assert.deepEqual(listed("build").toSorted(), beyond);
  });

  test("has at most 2,500 words", () => {
    assert.ok(text.split(/\s+/).length <= 2_500);
  });

  /** The first word of each line of a list, which is a path below `src/`. */
  function listed(name: "job" | "build"): string[] {
    const [, list = ""] = text.split(new RegExp(`<!-- /?${name} -->`));
    return [...list.matchAll(/^([\w/-]+\.ts)/gm)].map(([, path]) => path as string);
  }
});
