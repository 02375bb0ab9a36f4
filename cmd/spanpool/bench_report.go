package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/spanpool/spanpool/bench"
)

func newReport() *cobra.Command {
	var out string
	c := &cobra.Command{
		Use:   "report FOLDER",
		Short: "Make one page with charts of the CSVs and JSONs that runs left in a folder",
		Long: `The page needs nothing besides itself: pictures and style are in it, there is no script, and it follows the reader's light
or dark theme. Lines in front of a CSV that begin with "# machine:", "# commit:", "# time:" and "# command:" are shown with it,
and the command says over what was measured and what was fetched. A file that was cut off, has no rows, or is of no benchmark is
named on the page, and makes the exit status 1.`,
		Args: args(1, 1, "FOLDER"),
		RunE: func(c *cobra.Command, a []string) error {
			r, err := bench.ReadReport(os.DirFS(a[0]))
			if err != nil {
				return fmt.Errorf("report of %q: %w", a[0], err)
			}
			var page bytes.Buffer
			if err := r.Write(&page); err != nil {
				return err
			}
			if out == "" {
				_, err = c.OutOrStdout().Write(page.Bytes())
			} else {
				err = os.WriteFile(out, page.Bytes(), 0o644)
			}
			if err == nil && len(r.Unread) > 0 {
				err = fmt.Errorf("report of %q: the page is written, and does not show all: %s", a[0], strings.Join(r.Unread, "; "))
			}
			return err
		},
	}
	c.Flags().StringVar(&out, "out", "", "file of the page (default the standard output)")
	return c
}
