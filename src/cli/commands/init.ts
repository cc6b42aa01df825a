import { existsSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import type { Command } from "commander";
import { CONFIG_FILES, namedConfig } from "../config.ts";
import { packageTypeAt } from "../modules.ts";
import { answer } from "../render/output.ts";
import { oneLine, paint } from "../render/table.ts";
import { addCommand } from "../verb.ts";

/** Name of the package in the templates. A constant keeps bundlers from taking a template's import for one of this file. */
const PACKAGE = '"holdfast"';

const JOBS = `import { job } from ${PACKAGE};

export const hello = job<{ name: string }, string>({
  name: "hello",
  run: async ({ input, log }) => {
    log.info(\`hello \${input.name}\`);
    return \`hello \${input.name}\`;
  },
});
`;

const configOf = (jobs: string): string => `import type { Config } from ${PACKAGE};

export default {
  // db: "work.db", // --db and HOLDFAST_DB come before it; default .holdfast/work.db
  modules: ["./${jobs}"], // what \`holdfast work\` runs; \`enqueue\` checks names and schemas
} satisfies Config;
`;

export function initCommand(parent: Command): void {
  addCommand(parent, "init", {
    description:
      "Write holdfast.config.ts and a file with a first job; .mts files in a CommonJS package. Existing files are not " +
      "changed.",
    examples: ["holdfast init"],
  }).action(async (_options: object, command: Command) => {
    const { created, kept } = await write(namedConfig(command));
    const next = steps(created);
    answer(command, { created, kept, next }, () =>
      [
        ...created.map((file) => `${paint("green", "wrote")} ${oneLine(file)}`),
        ...kept.map((file) => `${paint("dim", "kept")}  ${oneLine(file)}`),
        "",
        "Next:",
        ...next.map((line) => `  ${line}`),
      ].join("\n"),
    );
  });
}

/** Writes the config last: a config that exists shows that the other files are complete, or are the user's own. */
async function write(named: string | undefined): Promise<{ created: string[]; kept: string[] }> {
  const there = named ?? CONFIG_FILES.find((name) => existsSync(name));
  if (there !== undefined && existsSync(there)) return { created: [], kept: [there] };
  // In a CommonJS package, Node reads only .mts files as ES modules.
  const type = packageTypeAt(dirname(resolve(named ?? ".", "x"))) === "commonjs" ? ".mts" : ".ts";
  const config = named ?? `holdfast.config${type}`;
  const jobs = `jobs${type}`;
  const files: [string, string][] = [
    [join(dirname(config), jobs), JOBS],
    [config, configOf(jobs)],
  ];
  const created: string[] = [];
  for (const [file, text] of files) if (await writeNew(file, text)) created.push(file);
  return { created, kept: files.map(([file]) => file).filter((file) => !created.includes(file)) };
}

async function writeNew(file: string, text: string): Promise<boolean> {
  try {
    await writeFile(file, text, { flag: "wx" });
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return false;
    throw error;
  }
}

function steps(created: readonly string[]): string[] {
  const hasHello = created.some((file) => /jobs\.m?ts$/.test(file));
  return [
    ...(isInstalled() ? [] : ["npm install holdfast"]),
    hasHello ? `npx holdfast enqueue hello '{"name":"Anna"}'` : 'npx holdfast enqueue NAME \'{"some":"input"}\'',
    "npx holdfast work",
    "npx holdfast status",
  ];
}

function isInstalled(): boolean {
  try {
    createRequire(resolve("holdfast.config.ts")).resolve("holdfast");
    return true;
  } catch {
    return false;
  }
}
