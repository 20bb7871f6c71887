from fedstale.cli import main

main()
