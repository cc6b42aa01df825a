/** Builds: what was run, what came of it, what it cost, and who leads it. */
export const sql = `
create table holdfast_builds (
  key              integer primary key autoincrement,
  id               text not null unique,
  pipeline         text not null,
  queue            text not null,
  state            text not null check (
                     state in ('PENDING', 'ACTIVE', 'SUCCESS', 'FAILED', 'CRASHED', 'BUDGET_PAUSE', 'ABANDONED')),
  reason           text not null,
  note             text,
  -- The number of its last transition.
  seq              integer not null default 0,
  hash             text not null,
  description      text not null,
  options          text not null,
  -- Money in millionths; null: no limit.
  budget_micros    integer,
  budget_tokens    integer,
  spent_micros     integer not null default 0,
  spent_tokens     integer not null default 0,
  reserved_micros  integer not null default 0,
  reserved_tokens  integer not null default 0,
  approved         integer not null default 0,
  blocked          text,
  refused_micros   integer not null default 0,
  refused_tokens   integer not null default 0,
  max_failures     integer,
  round            integer not null default 0,
  listing          text not null default 'running' check (listing in ('running', 'done', 'failed')),
  open             integer not null default 0 check (open >= 0),
  failed           integer not null default 0,
  created_at       integer not null,
  finished_at      integer,
  checksum         integer
);
create index holdfast_builds_pipeline on holdfast_builds (pipeline, key);
-- A pipeline has one build that has not ended.
create unique index holdfast_builds_unended on holdfast_builds (pipeline) where state not in ('SUCCESS', 'FAILED', 'ABANDONED');

-- The same table of transitions as core has; a test compares them. Whatever a program believes, the file holds no other.
create trigger holdfast_builds_moves before update of state on holdfast_builds
when old.state <> new.state and (old.state || '>' || new.state) not in (
  'PENDING>ACTIVE', 'PENDING>ABANDONED',
  'ACTIVE>SUCCESS', 'ACTIVE>FAILED', 'ACTIVE>CRASHED', 'ACTIVE>BUDGET_PAUSE', 'ACTIVE>ABANDONED',
  'CRASHED>ACTIVE', 'CRASHED>ABANDONED',
  'BUDGET_PAUSE>ACTIVE', 'BUDGET_PAUSE>FAILED', 'BUDGET_PAUSE>ABANDONED')
begin
  select raise(abort, 'a build cannot make this transition');
end;

create table holdfast_build_stages (
  build   integer not null,
  place   integer not null,
  stage   text not null,
  ran     integer not null default 0,
  cached  integer not null default 0,
  failed  integer not null default 0,
  passed  integer not null default 0,
  open    integer not null default 0 check (open >= 0),
  primary key (build, stage)
) without rowid;

-- Who leads a pipeline's builds: one process at a time. Every write of an orchestrator names the token.
create table holdfast_leads (
  pipeline      text primary key,
  build         integer not null,
  token         text not null,
  holder        integer not null,
  pid           integer not null,
  host          text not null,
  program       text not null,
  program_hash  text not null,
  acquired_at   integer not null,
  beat_at       integer not null
) without rowid;

create table holdfast_targets (
  pipeline     text not null,
  segment      integer not null,
  path         text not null,
  id           text not null,
  parent       text,
  hash         text not null,
  fingerprint  text,
  -- What the first stage gets: its hash, and it, here or in an artifact.
  value_hash   text not null,
  value_text   text,
  value_file   text,
  value_size   integer not null default 0,
  seen         integer not null,
  done         text,
  completed        text not null,
  grouping     text,
  member       text,
  -- The key of the result that says why it failed.
  failure      integer,
  rev          integer not null,
  checksum     integer,
  primary key (pipeline, segment, path)
) without rowid;
create index holdfast_targets_children on holdfast_targets (pipeline, segment, parent, path) where parent is not null;
create index holdfast_targets_groups on holdfast_targets (pipeline, segment, grouping, path) where member is not null and grouping is not null;

-- One for each (build, stage, target) that was run. What was reused has none, as long as it is what the target had before:
-- REUSED is a copy of what was made earlier or for another target, and GONE says that there is nothing from this build on.
-- A success that was superseded in its own build is of no build any more (its negative key stands there): others may
-- have reused it.
create table holdfast_results (
  key          integer primary key autoincrement,
  build        integer not null,
  pipeline     text not null,
  stage        text not null,
  path         text not null,
  target       text not null,
  state        text not null check (state in ('SUCCESS', 'FAILED', 'REUSED', 'GONE')),
  hash         text not null,
  parts        text,
  output_hash  text not null,
  output_text  text,
  output_file  text,
  output_size  integer not null default 0,
  micros       integer not null default 0,
  tokens       integer not null default 0,
  error        text,
  at           integer not null,
  -- 1: other targets may reuse it.
  shared       integer not null default 0,
  checksum     integer
);
-- By path, which most are looked up by: an index by the hash alone would write a page of its own for each result.
create index holdfast_results_context on holdfast_results (pipeline, stage, path, hash, key) where state = 'SUCCESS';
create index holdfast_results_hash on holdfast_results (hash, key) where state = 'SUCCESS' and shared = 1;
create unique index holdfast_results_target on holdfast_results (pipeline, stage, path, build);
create index holdfast_results_failed on holdfast_results (build, key) where state = 'FAILED';

create table holdfast_artifacts (
  build  integer not null,
  stage  text not null,
  path   text not null,
  name   text not null,
  hash   text not null,
  size   integer not null,
  primary key (build, stage, path, name)
) without rowid;
create index holdfast_artifacts_hash on holdfast_artifacts (hash);

-- Work items that have not ended: jobs of builds. estimate: reserved while it runs. cost: what the running attempt has
-- reported. charged: what its earlier attempts have cost.
create table holdfast_work (
  job              integer primary key,
  build            integer not null,
  kind             text not null check (kind in ('listing', 'stage', 'remove')),
  stage            text not null,
  segment          integer not null,
  path             text not null,
  estimate_micros  integer not null default 0,
  estimate_tokens  integer not null default 0,
  cost_micros      integer not null default 0,
  cost_tokens      integer not null default 0,
  charged_micros   integer not null default 0,
  charged_tokens   integer not null default 0
);
-- A target is at one stage at a time.
create unique index holdfast_work_target on holdfast_work (build, segment, path, stage, kind);

create table holdfast_stage_costs (
  pipeline  text not null,
  stage     text not null,
  attempts  integer not null,
  micros    integer not null,
  tokens    integer not null,
  primary key (pipeline, stage)
) without rowid;

-- Confirmation tokens, hashed.
create table holdfast_tokens (
  hash         text primary key,
  build        integer not null,
  pause        integer not null,
  minted_at    integer not null,
  expires_at   integer not null,
  used_at      integer,
  replaced_at  integer
) without rowid;
create index holdfast_tokens_build on holdfast_tokens (build);
`;
