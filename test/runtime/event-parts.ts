import type { Event } from "../../src/index.ts";
import type { Holdfast } from "../../src/holdfast.ts";
import type { SinkView } from "../../src/store/events.ts";

/** Operator's acts that are always told: something to deliver, called by these names. */
export async function happens(hf: Holdfast, ...names: string[]): Promise<void> {
  const { store } = hf.engine;
  for (const name of names) {
    await store.events.position({ name, kind: "test" });
    await store.events.dropSink(name);
  }
}

export function nameOf({ data }: Pick<Event, "data">): string {
  return (data as { sink: string }).sink;
}

/** Resolves when this sink has everything that happened so far. */
export async function delivered(hf: Holdfast, name: string): Promise<void> {
  await sink(hf, name, ({ behind }) => behind === 0);
}

/** Resolves when the sink's view is as asked. */
export async function sink(hf: Holdfast, name: string, is: (view: SinkView) => boolean): Promise<void> {
  const { store } = hf.engine;
  let last: SinkView | undefined;
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const look = async () => {
    const view = (await store.events.sinks()).find((one) => one.name === name);
    // A long backlog takes its time.
    if (view?.cursor !== last?.cursor) deadline.refresh();
    last = view;
    if (view !== undefined && is(view)) resolve();
  };
  // It ends a test in which nothing is delivered any more, and decides nothing else.
  const deadline = setTimeout(() => reject(new Error(`The sink never was as asked: ${JSON.stringify(last)}`)), 20_000);
  const unlisten = store.onChange(() => void look());
  try {
    await look();
    await promise;
  } finally {
    unlisten();
    clearTimeout(deadline);
  }
}
