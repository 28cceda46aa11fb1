package agent

import (
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"
)

// newLogger returns a logger that writes with zerolog.
func newLogger(w io.Writer, level, format string) *slog.Logger {
	if f, ok := w.(*os.File); format == "auto" && ok && isatty.IsTerminal(f.Fd()) {
		format = "console"
	}
	if format == "console" {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly, NoColor: w != io.Writer(os.Stderr)}
	}
	least, err := zerolog.ParseLevel(level)
	if err != nil {
		least = zerolog.InfoLevel
	}
	return slog.New(zerolog.NewSlogHandler(zerolog.New(w).Level(least).With().Timestamp().Logger()))
}
