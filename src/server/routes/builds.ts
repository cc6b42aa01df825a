import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Readable } from "node:stream";
import * as z from "zod/mini";
import type { Build } from "../../core/pipelines/build-view.ts";
import type { Cost } from "../../core/pipelines/budget.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { definedOnly } from "../../core/text/options.ts";
import type { Holdfast } from "../../holdfast.ts";
import { queryList, queryNumber, route } from "../route.ts";
import * as schemas from "../schemas.ts";
import { tarOf } from "../tar.ts";

const { idInPath, text } = schemas;
const artifact = z.object({ stage: z.string(), path: z.string(), name: z.string(), hash: z.string(), size: z.int() });
const cell = z.object({ state: z.enum(["ran", "cached", "failed"]), cost: schemas.cost, at: schemas.instant });

export const BUILD_ROUTES = [
  route("get", "/builds", {
    id: "builds.list",
    summary: "Builds, with a cursor for the next page.",
    query: {
      ...schemas.pageQuery,
      pipeline: z.optional(text),
      state: z.optional(schemas.buildState),
      order: z.optional(schemas.order),
    },
    answer: schemas.pageOf(schemas.build),
    run: ({ hf, query }) => hf.builds.list(definedOnly(query)),
  }),
  route("get", "/pipelines", {
    id: "pipelines.list",
    summary: "Pipelines that the server knows, whose next build can be planned.",
    answer: z.object({ items: z.array(z.object({ name: z.string() })) }),
    run: async ({ options: { pipelines = [] } }) => ({ items: pipelines.map(({ name }) => ({ name })) }),
  }),
  route("get", "/pipelines/:name/plan", {
    id: "pipelines.plan",
    summary: "What a build would do now, stage by stage, with its estimated cost. Reads the source; changes nothing.",
    path: schemas.nameInPath,
    answer: z.object({
      stages: z.record(z.string(), z.looseObject({ run: z.int(), cached: z.int(), unknown: z.int(), estimate: schemas.cost })),
      removed: z.int(),
      estimate: schemas.cost,
      upperBound: z.optional(z.boolean()),
      incomplete: z.optional(z.boolean()),
      warnings: z.array(z.string()),
    }),
    run: async ({ hf, path, options: { pipelines = [] } }) => {
      const pipeline = pipelines.find(({ name }) => name === path.name);
      if (pipeline !== undefined) return hf.builds.plan(pipeline);
      throw new HoldfastError(
        "NO_SUCH_PIPELINE",
        `The server knows no pipeline "${path.name}".`,
        "Give it to handler(hf, { pipelines }), or list its module in the config that `holdfast ui` reads.",
      );
    },
  }),
  route("get", "/builds/:id", {
    id: "builds.get",
    summary: "One build.",
    path: idInPath,
    answer: schemas.build,
    run: ({ hf, path }) => buildOf(hf, path.id),
  }),
  route("get", "/builds/:id/grid", {
    id: "builds.grid",
    summary: "Targets by stages of a build, a page of them: what each stage did for each target, and what it cost.",
    path: idInPath,
    query: {
      segment: z._default(queryNumber(0, 1_000), 0),
      after: z.optional(z.string()),
      limit: z._default(queryNumber(1, 1_000), 200),
    },
    answer: z.object({
      segments: z.array(z.array(z.string())),
      segment: z.int(),
      rows: z.array(z.object({ path: z.string(), target: z.string(), cells: z.record(z.string(), cell) })),
      next: z.optional(z.string()),
    }),
    run: ({ operator, path, query: { segment, limit, after } }) =>
      operator.grid(path.id, { segment, limit, ...definedOnly({ after }) }),
  }),
  route("get", "/builds/:id/spend", {
    id: "builds.spend",
    summary: "What a build has spent over time, and the budget that it had then; of a large build from a sample of its results.",
    path: idInPath,
    answer: z.object({ points: z.array(z.object({ at: schemas.instant, spent: schemas.cost, budget: schemas.cost })) }),
    run: async ({ operator, path }) => ({ points: await operator.spend(path.id) }),
  }),
  route("get", "/builds/:id/why", {
    id: "builds.why",
    summary: "Why a stage ran for a target, or was reused, input by input.",
    path: idInPath,
    query: { stage: text, target: text },
    answer: z.looseObject({}),
    run: ({ hf, path, query }) => hf.builds.why(path.id, query.stage, query.target),
  }),
  route("get", "/builds/:id/output", {
    id: "builds.output",
    summary: "The output of a stage for a target.",
    path: idInPath,
    query: { stage: text, target: z.optional(text) },
    answer: z.object({ output: schemas.anyJson }),
    run: async ({ hf, path, query }) => ({ output: await hf.builds.output(path.id, query.stage, query.target) }),
  }),
  route("get", "/builds/:id/artifacts", {
    id: "builds.artifacts",
    summary: "Artifacts that a build references, by stage and path of the target.",
    path: idInPath,
    query: { stage: z.optional(text), path: z.optional(text) },
    answer: z.object({ items: z.array(artifact) }),
    run: async ({ hf, operator, path: { id }, query }) => {
      await buildOf(hf, id);
      const items = await operator.artifactsOf(id, definedOnly(query));
      return { items: items.map(({ stage, path, name, hash, size }) => ({ stage, path, name, hash, size })) };
    },
  }),
  route("get", "/builds/:id/export", {
    id: "builds.export",
    summary: "The files that `holdfast builds export` writes, as a tar archive: outputs, artifacts, manifest and checksums.",
    role: "operate",
    path: idInPath,
    query: { stage: z.optional(queryList) },
    answer: z.string(),
    contentType: "application/x-tar",
    run: async ({ hf, path, query, request }) => {
      const headers = {
        "content-type": "application/x-tar",
        "content-disposition": `attachment; filename="${encodeURIComponent(path.id)}.tar"`,
      };
      if (request.method === "HEAD") return new Response(null, { headers });
      const folder = await mkdtemp(join(tmpdir(), "holdfast-export-"));
      const archive = Readable.from(
        archived(folder, () => hf.builds.export(path.id, join(folder, "files"), definedOnly({ stages: query.stage }))),
      );
      // Wait for the first bytes, so that an export that fails answers with its error.
      await once(archive, "readable");
      return new Response(Readable.toWeb(archive) as ReadableStream, { headers });
    },
  }),
  route("post", "/builds/:id/token", {
    id: "builds.token",
    summary: "A new token that approves a paused build once. Earlier tokens of the build become invalid.",
    role: "approve",
    path: idInPath,
    answer: z.object({ token: z.string() }),
    run: async ({ hf, path }) => ({ token: await hf.builds.mintToken(path.id) }),
  }),
  route("post", "/builds/:id/approve", {
    id: "builds.approve",
    summary: "Approves a paused build with a new budget. Its next run continues it.",
    role: "approve",
    path: idInPath,
    body: { token: text, budget: schemas.cost },
    answer: schemas.build,
    run: ({ hf, path, body }) => hf.builds.approve(path.id, { token: body.token, budget: definedOnly(body.budget) as Cost }),
  }),
  endAction("refuse", "approve", "Ends a paused build as FAILED."),
  endAction("abandon", "operate", "Gives up a build that has not ended."),
  route("get", "/artifacts/:hash", {
    id: "artifacts.get",
    summary: "The bytes of an artifact, verified while they are sent.",
    path: { hash: z.string().check(z.regex(/^[0-9a-f]{64}$/)) },
    answer: z.string(),
    contentType: "application/octet-stream",
    run: async ({ operator, path }) => {
      const bytes = await operator.readArtifact(path.hash);
      // Wait for the first bytes, so that an unreadable artifact answers with its error.
      await once(bytes, "readable");
      const headers = {
        "content-type": "application/octet-stream",
        "content-disposition": `attachment; filename="${path.hash}"`,
      };
      return new Response(Readable.toWeb(bytes) as ReadableStream, { headers });
    },
  }),
];

function endAction(action: "refuse" | "abandon", role: "approve" | "operate", summary: string) {
  return route("post", `/builds/:id/${action}`, {
    id: `builds.${action}`,
    summary,
    role,
    path: idInPath,
    body: { reason: text },
    answer: schemas.build,
    run: ({ hf, path, body }) => hf.builds[action](path.id, body.reason),
  });
}

async function buildOf(hf: Holdfast, id: string): Promise<Build> {
  const build = await hf.builds.get(id);
  if (build !== null) return build;
  throw new HoldfastError("NO_SUCH_BUILD", `There is no build ${id}.`, "List builds at api/v1/builds.");
}

/** Removes the folder at the end of the archive, also if the client disconnects early. */
async function* archived(folder: string, exported: () => Promise<string>): AsyncGenerator<Uint8Array> {
  try {
    yield* tarOf(await exported());
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
