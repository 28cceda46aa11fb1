// The page that a dashboard is drawn on: panels at their places on Grafana's
// grid, in Grafana's frames and theme.
import '@fontsource/inter/400.css';
import '@fontsource/inter/500.css';
import { ThemeContext, createTheme } from '@grafana/data';
import { GlobalStyles, PanelChrome } from '@grafana/ui';
import { createRoot } from 'react-dom/client';
import { flushSync } from 'react-dom';
import { framesOf } from './frames.mjs';
import { Plain, kinds } from './panels.jsx';

// Grafana's grid: so many columns, and pixels of a row and between panels.
const columns = 24;
const row = 30;
const gap = 8;

// draw draws a dashboard of this model, so wide. It returns what the picture
// has that Grafana's own components did not draw.
window.draw = async ({ title, description, panels, set, span, width, mode }) => {
  const theme = createTheme({ colors: { mode } });
  for (const p of panels) {
    p.frames = p.type === 'row' ? [] : await framesOf(p, p.answers, span.times, theme);
  }
  flushSync(() => createRoot(document.body.appendChild(document.createElement('main'))).render(
    <ThemeContext.Provider value={theme}>
      <style>{'body { margin: 0; }'}</style>
      <GlobalStyles hackNoBackdropBlur={false} isExtensionSidebarOpen={false} />
      <Heading {...{ title, description, set, span, theme }} />
      <div style={{ position: 'relative', margin: '0 16px 16px', height: Math.max(...panels.map((p) => p.gridPos.y + p.gridPos.h)) * (row + gap) }}>
        {panels.map((p) => <Panel key={p.id} panel={p} span={span} across={width - 32} theme={theme} />)}
      </div>
    </ThemeContext.Provider>
  ));
  return [...new Set(panels.filter((p) => p.type !== 'row' && (!kinds[p.type] || kinds[p.type].ours)).map((p) => p.type))];
};

// settled reports whether all that is drawn later is there: fonts, rows of
// tables, and lines, which are drawn in an animation frame.
window.settled = async () => {
  await document.fonts.ready;
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return [...document.querySelectorAll('[data-kind=table]')].every((e) => e.querySelector('[role=gridcell], [data-empty]'));
};

function Heading({ title, description, set, span, theme }) {
  const quiet = { color: theme.colors.text.secondary };
  const box = { background: theme.colors.background.secondary, border: `1px solid ${theme.colors.border.weak}`, borderRadius: 4, padding: '4px 8px' };
  const clock = (t) => new Date(t).toISOString().slice(11, 19);
  return (
    <header style={{ margin: '12px 16px', fontSize: 13 }}>
      <div style={{ display: 'flex', justifyContent: 'space-between', alignItems: 'baseline' }}>
        <span><span style={{ fontSize: 18, fontWeight: 500 }}>{title}</span> <span style={{ ...quiet, marginLeft: 8 }}>{description}</span></span>
        <span style={quiet}>Drawn with Grafana’s components, outside of a Grafana server</span>
      </div>
      <div style={{ display: 'flex', gap: 8, marginTop: 10 }}>
        {set.map((v) => <span key={v.name} style={box}><span style={quiet}>{v.name}</span> {v.text}</span>)}
        <span style={{ ...box, marginLeft: 'auto' }}>{clock(span.from)} to {clock(span.to)} UTC</span>
      </div>
    </header>
  );
}

function Panel({ panel, span, across, theme }) {
  const { x, y, w, h } = panel.gridPos;
  const column = (across - gap * (columns - 1)) / columns;
  const width = column * w + gap * (w - 1);
  const height = row * h + gap * (h - 1);
  const place = { position: 'absolute', left: x * (column + gap), top: y * (row + gap), width, height };
  if (panel.type === 'row') {
    return <div style={{ ...place, fontSize: 16, fontWeight: 500, lineHeight: `${row}px` }}>{panel.title}</div>;
  }
  const { draw: Kind = Plain, emptyable } = kinds[panel.type] ?? {};
  return (
    <div style={place} data-kind={panel.type}>
      <PanelChrome title={panel.title} description={panel.description} width={width} height={height}>
        {(width, height) => (emptyable && !panel.frames.some((f) => f.length > 0)
          ? <div data-empty style={{ lineHeight: `${height}px`, textAlign: 'center', color: theme.colors.text.secondary }}>{panel.fieldConfig.defaults.noValue ?? 'No data'}</div>
          : <Kind panel={panel} frames={panel.frames} width={width} height={height} span={span} />)}
      </PanelChrome>
    </div>
  );
}
