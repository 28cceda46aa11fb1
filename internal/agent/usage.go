package agent

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kingpin/v2"

	"gpusteward/internal/input"
)

// introduction says what a bare gpusteward starts, to somebody who may not know.
func introduction(f flags, uid int) string {
	if f.demoGiven || f.configGiven {
		return ""
	}
	text := "gpusteward: this is the agent. It reads the GPUs of this host and serves their metrics and a live page at " +
		strings.Join(*f.web.WebListenAddresses, ", ") + ", until Ctrl-C.\n"
	if _, err := os.Stat(f.config); err != nil {
		text += "  Without a configuration (" + f.config + ") it only observes: it changes nothing.\n"
	}
	if uid != 0 {
		text += "  Without root it may not see the kernel's log and the owners of processes, and may keep no state.\n"
	}
	return text + "  gpusteward --demo simulates a host, gpusteward status shows a running agent, and gpusteward --help\n" +
		"  lists all commands.\n"
}

// commandHelp is the help of a command: its own flags stand before those of the whole program.
const commandHelp = `usage: {{.App.Name}} {{.Context.SelectedCommand}}{{with .Context.SelectedCommand.FlagSummary}} {{.}}{{end -}}
{{if .Context.SelectedCommand.Commands}} <command>{{end}}{{range .Context.Args}} {{if not .Required}}[{{end}}<{{.Name}}>{{if .Value|IsCumulative -}}
...{{end}}{{if not .Required}}]{{end}}{{end}}

{{.Context.SelectedCommand.Help|Wrap 0}}
{{with .Context.Args}}Args:
{{.|ArgsToTwoColumns|FormatTwoColumns}}
{{end}}{{range .Context.SelectedCommand.Commands}}  {{.FullCommand}}
{{.Help|Wrap 4}}
{{end}}{{with .Context.SelectedCommand.Flags}}Flags:
{{.|FlagsToTwoColumns|FormatTwoColumns}}
{{end}}Flags of every command:
{{.App.Flags|FlagsToTwoColumns|FormatTwoColumns}}
`

// unknownWord matches the parser's errors about a word that it does not know.
var unknownWord = regexp.MustCompile(`^(unexpected|expected command but got|unknown long flag|unknown short flag) ['"]?(.*?)['"]?$`)

// chosen returns the command that the arguments name; nil: none. The parser chooses the agent then.
func chosen(app *kingpin.Application, args []string) *kingpin.CmdClause {
	c, _ := app.ParseContext(args)
	if c == nil || c.SelectedCommand == nil ||
		!slices.Contains(args, strings.Fields(c.SelectedCommand.FullCommand())[0]) {
		return nil
	}
	return c.SelectedCommand
}

// misspelt returns an error about a word, with what may be meant. selected is the command that the arguments name.
func misspelt(app *kingpin.ApplicationModel, selected *kingpin.CmdClause, what, word string) error {
	commands, flags := app.Commands, app.Flags
	switch {
	case selected != nil:
		m := selected.Model()
		commands, flags = m.Commands, slices.Concat(flags, m.Flags)
		if what == "unexpected" {
			return fmt.Errorf("%q is an argument too many", word)
		}
	default:
		for _, c := range commands {
			if c.Default {
				flags = slices.Concat(flags, c.Flags)
			}
		}
	}
	var known []string
	if strings.HasPrefix(what, "unknown") {
		for _, f := range flags {
			if !f.Hidden {
				known = append(known, "--"+f.Name)
			}
		}
		instead := input.Instead(word, known)
		if selected != nil && selected.FullCommand() == "exec" {
			instead += "; the program's own flags follow --, as in gpusteward exec -- python3 -u train.py"
		}
		return fmt.Errorf("there is no flag %q here%s", word, instead)
	}
	for _, c := range commands {
		if !c.Hidden && c.Name != "help" {
			known = append(known, c.Name)
		}
	}
	return fmt.Errorf("there is no command %q%s", word, input.Instead(word, known))
}

// clearer says the parser's errors in the words of the others.
var clearer = map[*regexp.Regexp]string{
	regexp.MustCompile(`^required argument '(.*)' not provided$`): "<$1> is missing",
	regexp.MustCompile(`^must select a subcommand of '(.*)'$`):    "$1 is no command by itself",
	regexp.MustCompile(`^flag '(.*)' cannot be repeated$`):        "--$1 is given more than once",
	regexp.MustCompile(`^expected argument for flag '(.*)'$`):     "$1 has no value: write $1=VALUE",
}

// usageError returns err, an error of the command line, with what the parser does
// not tell: the flag or the argument whose value caused it, or what may be meant.
func usageError(app *kingpin.Application, args []string, err error) error {
	for told, better := range clearer {
		if told.MatchString(err.Error()) {
			return errors.New(told.ReplaceAllString(err.Error(), better))
		}
	}
	c, _ := app.ParseContext(args)
	if c == nil {
		return err
	}
	if m := unknownWord.FindStringSubmatch(err.Error()); m != nil {
		return misspelt(app.Model(), chosen(app, args), m[1], m[2])
	}
	for _, e := range c.Elements {
		var name string
		var value kingpin.Value
		switch clause := e.Clause.(type) {
		case *kingpin.FlagClause:
			name, value = "--"+clause.Model().Name, clause.Model().Value
		case *kingpin.ArgClause:
			name, value = clause.Model().Name, clause.Model().Value
		}
		if value == nil || e.Value == nil {
			continue
		}
		if bad := value.Set(*e.Value); bad == nil || bad.Error() != err.Error() {
			continue
		}
		options, _, isChoice := strings.Cut(strings.TrimPrefix(err.Error(), "enum value must be one of "), ", got ")
		switch {
		case isChoice:
			return fmt.Errorf("%s: there is no value %q%s", name, *e.Value, input.Instead(*e.Value, strings.Split(options, ",")))
		case errors.Is(err, strconv.ErrRange):
			return fmt.Errorf("%s: %s is too large or too small", name, *e.Value)
		case errors.As(err, new(*strconv.NumError)):
			return fmt.Errorf("%s: %q is not a whole number", name, *e.Value)
		case strings.HasPrefix(err.Error(), "time: "):
			return fmt.Errorf("%s: %q is not a duration such as 20s", name, *e.Value)
		}
		return fmt.Errorf("%s: %w", name, err)
	}
	return err
}
