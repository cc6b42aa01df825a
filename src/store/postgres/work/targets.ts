import { TARGET, type TargetColumns, toTarget } from "../../target-row.ts";
import type { MemberPage, TargetPage, TargetRow } from "../../work.ts";
import { listOf, type Rows, type Value } from "../driver.ts";
import { named, namesOf } from "./columns.ts";

const NAMES = namesOf(TARGET);

/** The targets of pipelines, by segment and path. Their order is that of the paths' bytes: so are the columns collated. */
export class Targets {
  readonly #s: string;
  readonly #sql: Record<"byPath" | "count", string>;

  constructor(s: string) {
    this.#s = s;
    this.#sql = {
      byPath: `select ${TARGET} from ${s}.targets where pipeline = $1 and segment = $2 and path = any($3::text[]) order by path`,
      count: `select count(*) from ${s}.targets where pipeline = $1 and segment = $2`,
    };
  }

  byPath(rows: Rows, pipeline: string, segment: number, paths: readonly string[]): Promise<TargetRow[]> {
    return read(rows, this.#sql.byPath, pipeline, segment, listOf(paths));
  }

  async count(rows: Rows, pipeline: string, segment: number): Promise<number> {
    const [[count]] = (await rows<[number]>(this.#sql.count, pipeline, segment)) as [[number]];
    return count;
  }

  /** By the primary key, or by targets_children. */
  page(rows: Rows, { pipeline, segment, after, limit, parent, unseen }: TargetPage): Promise<TargetRow[]> {
    return this.#walk(rows, { pipeline, segment, limit }, "path", [
      after === undefined ? null : ["path >", after],
      parent === undefined ? null : ["parent =", parent],
      unseen === undefined ? null : ["seen <>", unseen],
    ]);
  }

  /** First those of no group, then group by group: these by targets_groups. */
  async members(rows: Rows, { pipeline, segment, after, group, limit }: MemberPage): Promise<TargetRow[]> {
    const of = (most: number) => ({ pipeline, segment, limit: most });
    const within = (one: string | null, path: string | undefined, most: number) =>
      this.#walk(
        rows,
        of(most),
        "path",
        [one === null ? null : ["grouping =", one], path === undefined ? null : ["path >", path]],
        one === null ? "member is not null and grouping is null" : MEMBER,
      );
    if (group !== undefined) return within(group, after?.path, limit);
    const members = await within(after?.group ?? null, after?.path, limit);
    const left = limit - members.length;
    if (left === 0) return members;
    const last = after?.group ?? null;
    const others = await this.#walk(rows, of(left), "grouping, path", [last === null ? null : ["grouping >", last]], MEMBER);
    return [...members, ...others];
  }

  /** Only what is asked for stands in the statement, so that the planner finds its index. */
  #walk(
    rows: Rows,
    { pipeline, segment, limit }: { pipeline: string; segment: number; limit: number },
    order: string,
    conditions: readonly ([is: string, value: Value] | null)[],
    also?: string,
  ): Promise<TargetRow[]> {
    const values: Value[] = [pipeline, segment, limit];
    const asked = conditions.flatMap((condition) =>
      condition === null ? [] : [`${condition[0]} $${values.push(condition[1])}`],
    );
    const where = ["pipeline = $1", "segment = $2", ...asked, ...(also === undefined ? [] : [also])].join(" and ");
    return read(rows, `select ${TARGET} from ${this.#s}.targets where ${where} order by ${order} limit $3`, ...values);
  }
}

const MEMBER = "member is not null and grouping is not null";

async function read(rows: Rows, text: string, ...values: Value[]): Promise<TargetRow[]> {
  return named<TargetColumns>(NAMES, await rows(text, ...values)).map(toTarget);
}
