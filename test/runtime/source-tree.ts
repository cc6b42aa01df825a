import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import type { TestContext } from "node:test";
import { files, type FilesSource, sourceOf } from "../../src/core/pipelines/source.ts";
import { type ListedFile, type ListOptions, listFiles } from "../../src/pipelines/sources/files.ts";

type FilesOptions = NonNullable<Parameters<typeof files>[1]>;

/** A folder of files for a test to list, beside which there may be others. Removed after the test. */
export class SourceTree {
  readonly base = mkdtempSync(join(tmpdir(), "holdfast-source-"));
  readonly root = join(this.base, "root");

  constructor(t: TestContext, contents: Record<string, string> = {}) {
    t.after(() => rmSync(this.base, { recursive: true, force: true }));
    mkdirSync(this.root);
    for (const [id, text] of Object.entries(contents)) this.write(id, text);
  }

  path(id: string): string {
    return join(this.root, id);
  }

  write(id: string, text: string | Uint8Array = id): string {
    const path = this.path(id);
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, text);
    return path;
  }

  link(id: string, to: string): void {
    mkdirSync(dirname(this.path(id)), { recursive: true });
    symlinkSync(to, this.path(id));
  }

  listing(globs: string | string[] = "**", options: FilesOptions & Partial<ListOptions> = {}): AsyncGenerator<ListedFile> {
    const { cwd = this.root, skip = [], after, onSkipped = () => {}, ...given } = options;
    return listFiles(sourceOf(files(globs, given)) as FilesSource, { cwd, skip, after, onSkipped });
  }

  async list(...given: Parameters<SourceTree["listing"]>): Promise<ListedFile[]> {
    const found: ListedFile[] = [];
    for await (const file of this.listing(...given)) found.push(file);
    return found;
  }

  async ids(globs?: string | string[], options?: FilesOptions & Partial<ListOptions>): Promise<string[]> {
    return (await this.list(globs, options)).map(({ id }) => id);
  }
}

/** The superuser may read everything; tests of unreadable files run as the Unix user `nobody` meanwhile. ruled-out-word-ok */
export async function asNobody(tree: SourceTree, act: () => Promise<void>): Promise<void> {
  if (process.getuid?.() !== 0) return act();
  chmodSync(tree.base, 0o755);
  process.seteuid?.(65_534);
  try {
    await act();
  } finally {
    process.seteuid?.(0);
  }
}
