
umount "$work/models" 2>/dev/null
rm -rf "$work"
echo "== summary, $SECONDS s"
head -n 60 "$out/summary.txt" | cut -c 1-330 | head -c 11000
[ -z "$skipped" ] || echo "no time was left for:$skipped"
