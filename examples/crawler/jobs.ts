import { job } from "../../src/index.ts";

/** One page: fetched, and what it links to is enqueued. Politely, whichever process it runs in. */
export const crawl = job<{ url: string }, { title: string; links: number }>({
  name: "crawl",
  limit: { key: ({ url }) => new URL(url).host, concurrency: 2, rate: "20/s" },
  run: async ({ input, signal, enqueue }) => {
    const answer = await fetch(input.url, { signal });
    if (!answer.ok) throw new Error(`${input.url} answered ${answer.status}.`);
    const html = await answer.text();
    const links = [...html.matchAll(/href="([^"]+)"/g)].map(([, href]) => new URL(href as string, input.url).href);
    // They are there when this page is done, and not before. The url is the id: each page is crawled once, ever.
    for (const url of links) enqueue(crawl, { url }, { id: url });
    return { title: /<title>(.*)<\/title>/.exec(html)?.[1] ?? "", links: links.length };
  },
});
