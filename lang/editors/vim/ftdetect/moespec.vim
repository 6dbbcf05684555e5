au BufRead,BufNewFile *.moespec setfiletype moespec
