// Draws a dashboard: panels at their positions on Grafana's grid, in Grafana's
// frames and theme.
import '@fontsource/inter/400.css';
import '@fontsource/inter/500.css';
import { ThemeContext, createTheme } from '@grafana/data';
import { GlobalStyles, PanelChrome } from '@grafana/ui';
import { createRoot } from 'react-dom/client';
import { flushSync } from 'react-dom';
import { framesOf } from './frames.mjs';
import { Plain, kinds } from './panels.jsx';

// Grafana's grid.
const columns = 24;
const row = 30; // pixels
const gap = 8; // pixels between panels

// draw draws a dashboard. It returns the kinds of panels that Grafana's own
// components did not draw.
window.draw = async ({ title, description, panels, set, span, width, mode }) => {
  const theme = createTheme({ colors: { mode } });
  for (const p of panels) {
    p.frames = p.type === 'row' ? [] : await framesOf(p, p.answers, span.times, theme);
  }
  const high = Math.max(...panels.map((p) => p.gridPos.y + p.gridPos.h));
  flushSync(() => createRoot(document.body.appendChild(document.createElement('main'))).render(
    <ThemeContext.Provider value={theme}>
      <style>{'body { margin: 0; }'}</style>
      <GlobalStyles hackNoBackdropBlur={false} isExtensionSidebarOpen={false} />
      <Heading {...{ title, description, set, span, theme }} />
      <div style={{ position: 'relative', margin: '0 16px 16px', height: high * (row + gap) }}>
        {panels.map((p) => <Panel key={p.id} panel={p} span={span} across={width - 32} theme={theme} />)}
      </div>
    </ThemeContext.Provider>
  ));
  const ours = panels.filter((p) => p.type !== 'row' && (!kinds[p.type] || kinds[p.type].ours));
  return [...new Set(ours.map((p) => p.type))];
};

// settled reports whether the parts that are drawn later are there: fonts, rows
// of tables, and lines, which are drawn in an animation frame.
window.settled = async () => {
  await document.fonts.ready;
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const tables = [...document.querySelectorAll('[data-kind=table]')];
  return tables.every((e) => e.querySelector('[role=gridcell], [data-empty]'));
};

function Heading({ title, description, set, span, theme }) {
  const quiet = { color: theme.colors.text.secondary };
  const box = {
    background: theme.colors.background.secondary, border: `1px solid ${theme.colors.border.weak}`,
    borderRadius: 4, padding: '4px 8px',
  };
  const clock = (t) => new Date(t).toISOString().slice(11, 19);
  return (
    <header style={{ margin: '12px 16px', fontSize: 13 }}>
      <div style={{ display: 'flex', justifyContent: 'space-between', alignItems: 'baseline' }}>
        <span>
          <span style={{ fontSize: 18, fontWeight: 500 }}>{title}</span>
          {' '}<span style={{ ...quiet, marginLeft: 8 }}>{description}</span>
        </span>
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
  const text = panel.fieldConfig.defaults.noValue ?? 'No data';
  const centered = { textAlign: 'center', color: theme.colors.text.secondary };
  return (
    <div style={place} data-kind={panel.type}>
      <PanelChrome title={panel.title} description={panel.description} width={width} height={height}>
        {(width, height) => (emptyable && !panel.frames.some((f) => f.length > 0)
          ? <div data-empty style={{ ...centered, lineHeight: `${height}px` }}>{text}</div>
          : <Kind panel={panel} frames={panel.frames} width={width} height={height} span={span} />)}
      </PanelChrome>
    </div>
  );
}
