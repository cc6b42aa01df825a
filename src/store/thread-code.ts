// scripts/build.ts replaces this module: published thread code is a text inside the library, so that bundlers keep it.
export const THREAD_CODE: string | null = null;
export const IS_THREAD_CODE: boolean = false;
