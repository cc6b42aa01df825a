import { promisify } from "node:util";
import { deflateRaw, inflateRaw } from "node:zlib";
import { type Member, type Members, toMember } from "../../core/members.ts";
import type { Segment } from "../../core/segment.ts";
import type { TargetRow } from "../../store/work.ts";
import type { Task } from "./stage-runner.ts";
import type { Worksite } from "./worksite.ts";

const PAGE = 1_000;

/** Of more, no list is kept: this many are a megabyte or two in the result's row, and nobody would read it. */
const MOST = 50_000;

/** What a gather is made of, as it is kept beside the parts of its context; null: there are too many. */
export async function memberList(site: Worksite, task: Task): Promise<string | null> {
  const members: Member[] = [];
  for await (const member of membersOf(site, task)) if (members.push(member) > MOST) return null;
  const kept: Members = { failed: task.view.build.failed, members };
  return (await promisify(deflateRaw)(JSON.stringify(kept))).toString("base64");
}

export async function readMembers(list: string): Promise<Members> {
  return JSON.parse((await promisify(inflateRaw)(Buffer.from(list, "base64"))).toString()) as Members;
}

async function* membersOf({ engine, model }: Worksite, { place, row, attempt }: Task): AsyncIterable<Member> {
  const { index } = place.segment;
  const own = new Set((model.segments[index - 1] as Segment).stages.map(({ name }) => name));
  const group = place.stage.by === null ? null : row.id;
  for (let last: TargetRow | undefined; ;) {
    attempt.signal.throwIfAborted();
    const after = last === undefined ? {} : { after: { group, path: last.path } };
    const page = await engine.store.work.members({ pipeline: model.name, segment: index - 1, group, limit: PAGE, ...after });
    for (const { path, trail, value, member } of page) {
      const output = trail.findLast(({ stage }) => own.has(stage))?.output ?? value.hash;
      yield toMember(path, output, member as string);
    }
    last = page.at(-1);
    if (last === undefined) return;
  }
}
