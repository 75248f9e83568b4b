// The bar of a recording that is shown: play, pause, where it is; and how one is made and opened.
import { button, el, setText } from './dom.js';
import { save } from './export.js';
import { chooseSession, focus } from './focus.js';
import { t } from './i18n.js';
import { announce } from './live.js';
import { setTexts } from './pieces.js';
import { Replay, readRecording, record } from './recording.js';
import { state, subscribe, touch } from './state.js';

/** @type {Replay | null} */
let replay = null;
const text = el('span', { testid: 'replay-text' });
const slider = el('input', { type: 'range', min: '0', i18nLabel: 'replay.where', testid: 'replay-slider', on: { input: () => replay?.seek(Number(slider.value)) } });
const toggle = el('button', { type: 'button', testid: 'replay-play', on: { click: () => (replay?.isPlaying ? replay.stop() : replay?.play()) } });
const status = el('span', { class: 'note', role: 'status', testid: 'recording-status' });
let restart = async () => {};

export function replayBar() {
  const root = el('section', { class: 'replay', i18nLabel: 'replay.title', testid: 'replay', hidden: true }, text, toggle, slider, button('replay.leave', leave, { testid: 'replay-leave' }));
  subscribe(['replay', 'lang'], () => {
    root.hidden = !replay;
    if (!replay) return;
    setText(text, t('replay.text', { session: replay.tape.info.session, layer: replay.tape.layer, length: replay.length, of: replay.tape.length }));
    setText(toggle, t(replay.isPlaying ? 'replay.stop' : 'replay.play'));
    slider.max = String(replay.tape.events.length - 1);
    slider.value = String(replay.at);
  });
  return root;
}

/** Buttons to make and to open a recording. @param {() => Promise<void>} onSource the page's source is another */
export function recordingTools(onSource) {
  restart = onSource;
  const file = el('input', { type: 'file', class: 'visually-hidden', tabindex: '-1', 'aria-hidden': 'true', accept: '.safetensors', testid: 'replay-file', on: { change: () => file.files[0] && open(file.files[0]) } });
  const make = button('replay.record', async () => {
    try {
      setText(status, t('replay.recording'));
      const { session } = focus;
      save(`${session}-layer${state.view.layer}-recording.safetensors`.replaceAll(':', '_'), await record(), 'application/octet-stream');
      setText(status, '');
    } catch (error) {
      say(error.message);
    }
  }, { class: 'small', testid: 'record' });
  subscribe(['focus', 'replay'], () => { make.disabled = !focus?.length || focus.status !== 'ok' || replay !== null; });
  make.disabled = true;
  return el('div', { class: 'buttons recording' }, make, button('replay.open', () => file.click(), { class: 'small', testid: 'replay-open' }), file, status);
}

function say(message) {
  setText(status, message);
  announce(message);
}

async function change(to) {
  replay?.end();
  replay = to;
  document.body.dataset.replay = String(replay !== null);
  await chooseSession(null);
  state.sessions.clear();
  state.totals = state.stats = null;
  touch('replay', 'sessions', 'totals');
  await restart();
}

async function open(file) {
  try {
    const tape = readRecording(await file.arrayBuffer());
    await change(new Replay(tape, () => touch('replay')));
    setTexts(tape.model.name, tape.texts);
    replay.seek(tape.events.length - 1);
    await chooseSession(tape.info.session, { layer: tape.layer });
    setText(status, '');
  } catch {
    say(t('replay.bad'));
  }
}

const leave = () => change(null);
