import { suite, test } from "node:test";
import type { BuildState } from "../../src/core/pipelines/build.ts";
import type { Cost } from "../../src/core/pipelines/budget.ts";
import { secret } from "../../src/core/pipelines/work.ts";
import { type Pipeline, pipeline } from "../../src/core/pipelines/pipeline.ts";
import { type FileTarget, files, items, type Source, type Target } from "../../src/core/pipelines/source.ts";
import type { StageContext, StageOptions } from "../../src/core/pipelines/stage.ts";
import type { Why } from "../../src/core/pipelines/build-view.ts";
import type * as promised from "./promised-pipelines.ts";

/** A caller that relies on the promise gets at least that. */
function gives<Promised, _Is extends Promised>(): void {}
/** Both ways. */
function is<Promised extends Is, Is extends _Again, _Again = Promised>(): void {}
/** True only when both are the very same type. */
type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
function same<A, B>(..._proof: Same<A, B> extends true ? [] : ["these types differ", A, B]): void {}

/** What the compiler checks is never run; that this file compiles is the test. */
function compiled(_program: () => unknown): void {}

type In<P> = P extends Pipeline<infer _T, infer I, infer _O, infer _A> ? I : never;
type TargetOf<P> = P extends Pipeline<infer T, infer _I, infer _O, infer _A> ? T : never;
type All<P> = P extends Pipeline<infer _T, infer _I, infer _O, infer A> ? { [K in keyof A]: A[K] } : never;

interface Mail {
  id: string;
  body: string;
}
interface Doc {
  kind: "doc";
  text: string;
}
interface Image {
  kind: "image";
  pixels: number;
}

const docs = pipeline("docs").source(files("**/*.md"));
const mixed = pipeline("mixed")
  .source(files("**"))
  .stage("load", {}, (): Doc | Image => ({ kind: "doc", text: "" }));

suite("pipelines keep what was promised of them", () => {
  test("data and options", () => {
    is<promised.Target, Target>();
    is<promised.FileTarget, FileTarget>();
    is<promised.Source<promised.FileTarget, string>, Source<FileTarget, string>>();
    is<promised.Cost, Cost>();
    is<promised.BuildState, BuildState>();
    is<promised.Why, Why>();
    is<promised.StageOptions<FileTarget, Mail>, StageOptions<FileTarget, Mail>>();
    is<promised.StageContext<FileTarget, Mail, { a: 1 }>, StageContext<FileTarget, Mail, { a: 1 }>>();
  });

  test("what is worked with", () => {
    is<promised.Pipeline<FileTarget, Mail, { a: 1 }, { a: 1 }>, Pipeline<FileTarget, Mail, { a: 1 }, { a: 1 }>>();
    gives<promised.MakePipeline, typeof pipeline>();
    gives<promised.Files, typeof files>();
    gives<promised.Items, typeof items>();
    gives<promised.Secret, typeof secret>();
  });
});

suite("what a stage gets is known from what comes before it", () => {
  test("the first one gets its source's targets and items", () => {
    compiled(() =>
      docs.stage("parse", {}, ({ target, input, outputs }) => {
        same<typeof target, FileTarget>();
        same<typeof input, undefined>();
        same<typeof outputs, Pick<{}, never>>();
        // @ts-expect-error nothing came before it
        return outputs.parse;
      }),
    );
    compiled(() =>
      pipeline("mails")
        .source(items((): Mail[] => [], { id: (mail) => mail.id, version: (mail) => mail.body }))
        .stage("read", { limit: { key: (mail) => mail.id, concurrency: 1 } }, ({ target, input }) => {
          same<typeof input, Mail>();
          same<typeof target, Target>();
          // @ts-expect-error a target of items() has no bytes
          return target.bytes();
        }),
    );
    // @ts-expect-error an id is a text
    compiled(() => items((): Mail[] => [], { id: (mail) => mail.body.length }));
    // @ts-expect-error without an id they are not recognized again
    compiled(() => items((): Mail[] => [], {}));
  });

  test("the next one gets the output of the last, awaited", () => {
    compiled(() =>
      docs
        .stage("parse", {}, async () => ({ words: 3 }))
        .stage("count", { key: ({ input }) => input.words, estimate: ({ input }) => ({ tokens: input.words }) }, ({ input }) => {
          same<typeof input, { words: number }>();
          // @ts-expect-error nothing of that name is in it
          return input.letters;
        }),
    );
  });

  test("it gets the earlier outputs that it names, and no others", () => {
    compiled(() =>
      docs
        .stage("parse", {}, () => "text")
        .stage("count", {}, () => 3)
        .stage("both", { uses: ["parse"] }, ({ input, outputs }) => {
          same<typeof input, number>();
          same<(typeof outputs)["parse"], string>();
          // @ts-expect-error it is not named
          return outputs.count;
        }),
    );
    // @ts-expect-error there is no such stage
    compiled(() => docs.stage("parse", {}, () => "text").stage("count", { uses: ["pars"] }, () => 3));
  });

  test("with a type guard it gets what it is asked for, and the next one the rest and its output", () => {
    const described = mixed.stage("ocr", { match: (_, input): input is Image => input.kind === "image" }, ({ input }) => {
      same<typeof input, Image>();
      return { seen: input.pixels };
    });
    same<In<typeof described>, Doc | { seen: number }>();
  });

  test("with a glob or a predicate the next one gets either", () => {
    const globbed = mixed.stage("ocr", { match: "**/*.png" }, ({ input }) => {
      same<typeof input, Doc | Image>();
      return 5;
    });
    same<In<typeof globbed>, Doc | Image | number>();
    const asked = mixed.stage("ocr", { match: (target, input) => target.size > 3 && input.kind === "image" }, () => 5);
    same<In<typeof asked>, Doc | Image | number>();
    compiled(() =>
      asked.stage("last", { uses: ["ocr", "load"] }, ({ outputs }) => {
        same<typeof outputs.ocr, number | undefined>();
        same<typeof outputs.load, Doc | Image>();
        // @ts-expect-error it may have passed by
        return outputs.ocr.toFixed();
      }),
    );
  });

  test("after expand the target has a parent, and the input is a value", () => {
    const pages = docs
      .stage("parse", {}, () => "text")
      .expand("pages", {}, async function* ({ input }) {
        same<typeof input, string>();
        yield { id: "1", value: { page: 1 } };
      });
    same<In<typeof pages>, { page: number }>();
    same<TargetOf<typeof pages>, Target & { parent: FileTarget }>();
    compiled(() =>
      pages.stage("render", { uses: ["parse"] }, ({ target, outputs }) => {
        gives<FileTarget, typeof target.parent>();
        same<typeof outputs.parse, string>();
      }),
    );
    // @ts-expect-error what it makes are targets of their own
    compiled(() => pages.stage("render", { uses: ["pages"] }, () => 1));
    // @ts-expect-error each needs an id
    compiled(() => docs.expand("pages", {}, () => [{ value: 1 }]));
  });

  test("a gather gets targets with their outputs, and what follows only its own", () => {
    const index = docs
      .stage("parse", {}, () => "text")
      .stage("count", { match: "**" }, () => 3)
      .gather(
        "index",
        { by: (target, output) => `${target.path}${output}`, partial: true },
        async ({ inputs, failed, input }) => {
          same<typeof failed, number>();
          same<typeof input, undefined>();
          for await (const { target, output, outputs } of inputs) {
            same<typeof target, FileTarget>();
            same<typeof output, string | number>();
            same<typeof outputs.parse, string>();
            same<typeof outputs.count, number | undefined>();
          }
          return new Uint8Array();
        },
      );
    same<In<typeof index>, Uint8Array<ArrayBuffer>>();
    same<TargetOf<typeof index>, Target>();
    compiled(() => index.stage("publish", { uses: ["index"] }, ({ outputs }) => outputs.index.length));
    // @ts-expect-error those are outputs of other targets
    compiled(() => index.stage("publish", { uses: ["parse"] }, () => 1));
    // @ts-expect-error a group has a name
    compiled(() => docs.gather("all", { by: () => 5 }, () => 1));
    // @ts-expect-error only a stage lets targets pass
    compiled(() => docs.gather("all", { match: "**" }, () => 1));
  });

  test("every stage's output is known by its name", () => {
    const whole = docs
      .stage("parse", {}, () => "text")
      .expand("pages", {}, () => [{ id: "1", value: 1n }])
      .stage("render", { match: "**" }, () => true)
      .gather("index", {}, () => ({ size: 3 }));
    same<All<typeof whole>, { parse: string; pages: bigint; render: boolean; index: { size: number } }>();
  });

  test("any pipeline is a pipeline", () => {
    const any: Pipeline[] = [docs, mixed, docs.gather("all", {}, () => 1)];
    compiled(() => any);
  });

  test("options that mean nothing do not compile", () => {
    // @ts-expect-error euros are not counted
    compiled(() => pipeline("docs", { budget: { eur: 5 } }));
    // @ts-expect-error an estimate is a cost
    compiled(() => docs.stage("a", { estimate: () => 5 }, () => 1));
    // @ts-expect-error by what?
    compiled(() => docs.stage("a", { reuse: "name" }, () => 1));
    // @ts-expect-error a handler is needed
    compiled(() => docs.stage("a", {}));
    // @ts-expect-error there is no source yet
    compiled(() => pipeline("docs").stage("a", {}, () => 1));
    compiled(() => docs.stage("a", { key: { model: "m", token: secret("t") }, timeout: "5m", version: 2 }, () => 1));
  });
});
