import { REFUSED } from "./refused.ts";

/**
 * Which jobs run is kept by claim, in a row for all that one statement started: `${s}.claims`, and the view `running` upon
 * it. Whoever starts jobs, ends some of them or changes when their leases end keeps it right, in that very statement.
 */

/** Part of a statement that starts jobs: `chosen` are their keys and leases; there is a `clock` and a `fence`. $2: the process. */
export function startedSql(s: string, chosen: string): string {
  return `
    insert into ${s}.claims (fence, holder, expires_at, at_work, jobs)
    select (select fence from fence), $2::bigint, min(clock.now + ${chosen}.lease), count(*), array_agg(${chosen}.key)
    from ${chosen}, clock having count(*) > 0`;
}

/**
 * The same where what was chosen is found again by its place, and `job` are those that were. Whoever waited a moment for a
 * row gets its newest version, which somebody may have made after this statement began: there it cannot change it. Then
 * there would be a claim of a job that was never started, so all of it is done again.
 */
export function startedBySpotSql(s: string): string {
  return `${startedSql(s, "chosen")} and (count(*) = (select count(*) from job) or ${s}.refuse('${REFUSED.moved}'))`;
}

/** The same where all of them have one lease, and `given` is the instant, the fence, and the places where they were found. */
export function startedAlikeSql(s: string, lease: string): string {
  return `
    insert into ${s}.claims (fence, holder, expires_at, at_work, jobs)
    select (select fence from given), $2::bigint, (select now from given) + ${lease}, count(*), array_agg(key)
    from job having case when count(*) = (select cardinality(spots) from given) then count(*) > 0 else ${s}.refuse('${REFUSED.moved}') end`;
}

/** Parts of a statement that ends jobs: `ended` has the fence of each. The last one's row goes with it. */
export function endedSql(s: string, ended: string): string {
  return `
    over as (select fence, count(*) as n from ${ended} group by fence),
    left_over as materialized (
      select claim.fence, claim.at_work - over.n as at_work from ${s}.claims as claim join over on over.fence = claim.fence
      order by claim.fence for update of claim),
    fewer as (
      update ${s}.claims as claim set at_work = left_over.at_work
      from left_over where claim.fence = left_over.fence and left_over.at_work > 0),
    none as (delete from ${s}.claims as claim using left_over where claim.fence = left_over.fence and left_over.at_work <= 0)`;
}

/** Part of a statement that changes when leases end: `changed` has the fence and the new end of each. */
export function boundSql(s: string, changed: string): string {
  return `
    bounds as (select fence, count(*) as n, min(expires_at) as expires_at from ${changed} group by fence),
    bound as (
      update ${s}.claims as claim
      set expires_at = case when bounds.n >= claim.at_work then bounds.expires_at else least(claim.expires_at, bounds.expires_at) end
      from bounds where claim.fence = bounds.fence)`;
}
