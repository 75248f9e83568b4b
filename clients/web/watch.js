// The one long-lived request of a page: GET /watch, read line by line, opened again when it ends.
import { ApiError, stream } from './api.js';

const RETRY_MS = [300, 700, 1500, 3000, 5000];

/**
 * @typedef {{event: string, seq: number, session?: string, length?: number, kv_bytes?: number} & Record<string, any>} WatchEvent
 * @typedef {'connecting' | 'live' | 'lost' | 'refused'} WatchStatus
 */
export class Watch {
  /**
   * @param {(event: WatchEvent) => void} onEvent
   * @param {(status: WatchStatus, error: ApiError | null) => void} onStatus
   */
  constructor(onEvent, onStatus) {
    this.onEvent = onEvent;
    this.onStatus = onStatus;
    this.query = '';
    this.failures = 0;
    this.timer = 0;
    /** @type {AbortController | null} */
    this.abort = null;
  }

  /** Watches all sessions, and the tensors of one; opens the stream anew if that changes it. */
  choose(selection) {
    const query = selection ? new URLSearchParams(selection).toString() : '';
    if (this.abort && query === this.query) return;
    this.query = query;
    this.open();
  }

  /** Tries again at once. */
  open() {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = new AbortController();
    this.#run(this.abort);
  }

  async #run(abort) {
    let expected = 0;
    let error = null;
    this.onStatus('connecting', null);
    try {
      await stream('GET', `/watch${this.query ? `?${this.query}` : ''}`, undefined, (event) => {
        if (abort.signal.aborted) return;
        if (event.event === 'hello') {
          this.failures = 0;
          this.onStatus('live', null);
        }
        if (event.seq !== expected) this.onEvent({ event: 'gap', seq: event.seq, dropped: event.seq - expected });
        expected = event.seq + 1;
        this.onEvent(event);
      }, { signal: abort.signal });
    } catch (thrown) {
      if (abort.signal.aborted) return;
      error = thrown instanceof ApiError ? thrown : new ApiError(0, { code: 'unreachable', message: String(thrown) });
    }
    if (abort.signal.aborted) return;
    this.onStatus(error && error.status >= 400 && error.status < 500 ? 'refused' : 'lost', error);
    this.timer = setTimeout(() => this.open(), RETRY_MS[Math.min(this.failures++, RETRY_MS.length - 1)]);
  }
}
